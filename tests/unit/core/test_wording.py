# SPDX-License-Identifier: Apache-2.0
"""How errors write names, values and counts."""

from __future__ import annotations

from horovod.core.wording import counted, on_one_line, plain, quoted, shown


def test_a_name_is_on_one_line_and_the_middle_of_a_long_one_is_left_out() -> None:
    assert quoted("a b") == "`a b`"
    assert quoted("line\nbreak\x01") == "`line\\nbreak\\x01`"
    assert quoted("x" * 120) == f"`{'x' * 120}`"
    assert quoted("a" * 90 + "b" * 4000 + "c" * 30) == f"`{'a' * 90}...{'c' * 30}` (4120 bytes)"
    assert quoted("é" * 200).endswith("` (400 bytes)")
    assert quoted("\udce9" * 200).endswith("` (600 bytes)")  # what no encoding takes
    assert quoted(5) == "`5`"


def test_what_steers_a_terminal_or_turns_text_around_is_shown_as_an_escape() -> None:
    assert plain("a\n\tb\x1b[31m\x07\x9b \xa0") == "a\n\tb\\x1b[31m\\x07\\x9b \xa0"
    assert plain("\u202e \u2066 \u2028 \u061c \udc9b") == "\\u202e \\u2066 \\u2028 \\u061c \\udc9b"
    assert plain("line\r\nof another system\r") == "line\nof another system\\x0d"
    assert plain("\N{EURO SIGN}\N{GRINNING FACE}") == "\N{EURO SIGN}\N{GRINNING FACE}"
    assert on_one_line("a\r\n\tb") == "a\\x0d\\n\\x09b"


def test_a_value_is_on_one_line_and_not_longer_than_a_name() -> None:
    class Long:
        def __repr__(self) -> str:
            return "first\n  second\n"

    assert shown([0, "a"]) == "[0, 'a']"
    assert shown(Long()) == "first second"
    assert shown(list(range(1000))) == f"{str(list(range(1000)))[:90]}...{str(list(range(1000)))[-30:]}"


def test_one_thing_is_not_many() -> None:
    assert [counted(number, "rank") for number in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert [counted(number, "pass", "passes") for number in (1, 2)] == ["1 pass", "2 passes"]
