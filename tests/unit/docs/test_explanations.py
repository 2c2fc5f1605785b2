# SPDX-License-Identifier: Apache-2.0
"""Every error code is explained, and what the table quotes is what the code says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from horovod.core import exceptions, native
from horovod.launcher import cli
from horovod.launcher.options.explanations import EXPLANATIONS, explain, pages

ROOT = Path(__file__).resolve().parents[3]
CODES = [one.code for one in EXPLANATIONS]


def source_files() -> list[Path]:
    folder = ROOT / "src/horovod/launcher/options/explanations"
    return [
        path
        for pattern in ("src/**/*.py", "native/**/*.cc", "native/**/*.h")
        for path in ROOT.glob(pattern)
        if folder not in path.parents
    ]


def messages_in_source() -> str:
    """All source code as one text, in which a literal that goes on in the next line is one."""
    text = "\n".join(path.read_text() for path in source_files())
    return re.sub(r'"\s*\n\s*(?:\+ )?f?"', "", text)


def test_codes_are_unique_and_are_words() -> None:
    assert len(set(CODES)) == len(CODES)
    assert [code for code in CODES if not re.fullmatch(r"[a-z]+(-[a-z]+)*", code)] == []


def test_every_code_of_an_exception_is_explained_and_every_explained_code_is_used() -> None:
    classes = [value for value in vars(exceptions).values() if inspect.isclass(value) and getattr(value, "code", "")]
    used = {one.code for one in classes} | {
        one.decode() for code in range(64) if (one := native.library().hvd_code_name(code))
    }
    source = "\n".join(path.read_text() for path in source_files())
    literals = re.findall(r"""["']((?:start|rank|agent|elastic|hosts?)(?:-[a-z]+)+)["']""", source)
    explained = set(re.findall(r"more: horovodrun --explain ([a-z-]+)", messages_in_source()))
    used |= set(literals) | explained
    assert used == set(CODES)


def test_native_names_are_the_codes_of_the_exceptions() -> None:
    for code in range(64):
        if name := native.library().hvd_code_name(code):
            assert native.error_of(code, "text").code == name.decode()


def test_quoted_messages_stand_in_the_source() -> None:
    source = messages_in_source()
    for one in EXPLANATIONS:
        for message in one.messages:
            for part in re.split(r"\.\.\.|SIG[A-Z]+|(?<=[;:]) ", message):  # names of signals are Python's
                assert part.strip(" `") in source, (one.code, message)


def test_an_error_ends_with_the_command_that_explains_it(capsys: pytest.CaptureFixture[str]) -> None:
    last = str(exceptions.MismatchError("the ranks disagree")).splitlines()[-1]
    assert last == "more: horovodrun --explain mismatch"
    assert cli.main(last.split()[2:]) == 0
    shown = capsys.readouterr().out
    assert "The ranks disagree about a tensor" in shown
    assert "Look for a branch on hvd.rank()" in shown


def test_explain_without_a_code_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--explain"]) == 0
    *codes, _, shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in codes] == CODES
    assert shown == f"pages: {', '.join(pages())}" and {"gpu", "pytorch", "slurm"} <= set(pages())


def test_texts_name_pages_that_are_installed(capsys: pytest.CaptureFixture[str]) -> None:
    source = "\n".join([messages_in_source(), *(explain(code) for code in CODES)])
    for name in set(re.findall(r"horovodrun --explain ([a-z-]+[a-z])", source)) - {"lists"}:
        assert cli.main(["--explain", name]) == 0
    literals = re.findall(r'"[^"\n]*"', re.sub(r'""".*?"""', "", source, flags=re.DOTALL))
    assert [one for one in literals if re.search(r"\bdocs/|\.md\b", one) and not re.search(r"\.mdb\b", one)] == []


def test_what_is_explained_breaks_no_path_and_no_flag() -> None:
    for one in EXPLANATIONS:
        words = " ".join([one.why, *one.actions]).split()
        assert set(words) <= set(explain(one.code).split()), one.code


def test_an_unknown_code_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--explain", "nonsense"]) == 2
    assert capsys.readouterr().err == (
        "horovodrun: there is no code and no page 'nonsense'\nhint: `horovodrun --explain` lists all codes and pages\n"
    )
