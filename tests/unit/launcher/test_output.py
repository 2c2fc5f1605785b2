# SPDX-License-Identifier: Apache-2.0
"""Streams cut into lines, however their pieces arrive."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.launcher.job.output import Outputs, Prefixer


def lines_of(pieces: list[str]) -> str:
    prefixer = Prefixer("|")
    return "".join(line for piece in pieces for line in prefixer.feed(piece)) + "".join(prefixer.finish())


def test_lines_end_at_newline_and_at_carriage_return() -> None:
    assert lines_of(["a\nb\rc\r\nd"]) == "|a\n|b\r|c\r\n|d\n"
    assert lines_of(["a\r", "\nb\n\n"]) == "|a\r\n|b\n|\n"
    assert lines_of(["\r", "", "\n", "\n"]) == lines_of(["\r\n\n"]) == "|\n|\n"
    assert lines_of(["\r10%", "\r20%", "\r", "\r30%\n"]) == "|10%\r|20%\r|30%\n"


def test_a_line_is_shown_as_soon_as_it_is_whole() -> None:
    prefixer = Prefixer("|")
    assert prefixer.feed("10%") == []
    assert prefixer.feed("\r20%") == ["|10%\r"]
    assert prefixer.feed("\r") == ["|20%\r"]


def test_an_unended_line_is_shown_after_a_moment_and_never_mixed_with_another_ranks() -> None:
    terminal = io.BytesIO()
    outputs = Outputs(2, {"stdout": terminal, "stderr": terminal})

    def shown() -> str:
        text = terminal.getvalue().decode()
        terminal.seek(0)
        terminal.truncate()
        return text

    def later() -> None:
        due = outputs.next_time()
        assert due is not None
        outputs.show_unended(due)

    outputs.write(0, "stdout", "loading ... ")
    assert shown() == "" and outputs.next_time() is not None
    later()
    assert shown() == "[0]<stdout>:loading ... " and outputs.next_time() is None
    outputs.write(0, "stdout", "done\nnext")
    later()
    assert shown() == "done\n[0]<stdout>:next"
    outputs.write(1, "stderr", "a line\nbegun")
    outputs.write(0, "stdout", "\n")  # its end is there already
    later()
    assert shown() == "\n[1]<stderr>:a line\n[1]<stderr>:begun"
    outputs.end_line("stderr")  # for horovodrun's own words
    outputs.write(1, "stderr", " and ended\n")
    outputs.write(0, "stdout", "10%\r20%\r")
    assert shown() == "\n[1]<stderr>: and ended\n[0]<stdout>:10%\r[0]<stdout>:20%\r"
    outputs.write(1, "stdout", "x\n")
    outputs.write(0, "stdout", "\nlast")
    assert shown() == "\n[1]<stdout>:x\n"
    later()
    outputs.end(0, "stdout")
    assert shown() == "[0]<stdout>:last\n"


def test_bars_of_ranks_that_share_a_terminal_stay_in_their_lines() -> None:
    bar = "outer\n\rinner\x1b[A\x1b[2K\x1b[1mbold\x1b[0m\x1b[2J\n"
    for size, only_rank, said in (
        (2, None, bar.replace("\x1b[A", "").replace("\x1b[2J", "")),
        (1, None, bar),
        (2, 0, bar),
    ):
        terminal = io.BytesIO()
        outputs = Outputs(size, {"stdout": terminal, "stderr": terminal}, prefix=False, only_rank=only_rank)
        for piece in (bar[:15], bar[15:]):
            outputs.write(0, "stderr", piece)
        assert terminal.getvalue().decode() == said.replace("\r", "")


def test_an_endless_line_is_broken() -> None:
    prefixer = Prefixer("|")
    assert [len(line) for line in prefixer.feed("x" * 150_000)] == [65538, 65538]


@settings(max_examples=500)
@given(st.lists(st.text(alphabet="ab\r\n", max_size=6), max_size=8))
def test_how_a_stream_is_cut_does_not_matter(pieces: list[str]) -> None:
    assert lines_of(pieces) == lines_of(["".join(pieces)])
    without_empty = re.sub(r"(?<![^\r\n])\r", "", "".join(pieces))
    assert lines_of(pieces).replace("|", "").removesuffix("\n") == without_empty.removesuffix("\n")


def test_the_last_lines_of_stderr_are_kept() -> None:
    outputs = Outputs(1, {"stdout": io.BytesIO(), "stderr": io.BytesIO()})
    for i in range(50):
        outputs.write(0, "stderr", f"line {i}\n")
    outputs.write(0, "stderr", " 10%\r 20%\r done\nno end")
    outputs.write(0, "stdout", "not this\n")
    kept = [line.text for line in outputs.last_lines(0)]
    assert len(kept) == 20 and kept[-3:] == ["line 49", " done", "no end"]


def test_a_file_that_cannot_be_made_for_a_process_that_joins_is_a_warning(tmp_path: Path) -> None:
    terminal = {"stdout": io.BytesIO(), "stderr": io.BytesIO()}
    warnings: list[str] = []
    outputs = Outputs(2, terminal, tmp_path, warn=warnings.append)
    (tmp_path / "rank.2").touch()  # where a folder should be
    outputs.add(2)
    outputs.add(3)
    outputs.write(0, "stdout", "on the terminal only\n")
    outputs.write(2, "stdout", "so is this\n")
    assert [warning.partition(";")[0] for warning in warnings] == [
        f"warning: cannot write to {tmp_path}/rank.2/stdout: File exists"
    ]
    assert terminal["stdout"].getvalue() == b"[0]<stdout>:on the terminal only\n[2]<stdout>:so is this\n"
    assert (tmp_path / "rank.0/stdout").read_bytes() == b"" and not (tmp_path / "rank.3").exists()


def test_what_a_process_leaves_behind_is_shown_when_its_stream_ends_and_its_file_is_closed(tmp_path: Path) -> None:
    shown = io.BytesIO()
    outputs = Outputs(0, {"stdout": shown, "stderr": io.BytesIO()}, tmp_path)
    for rank in range(200):
        outputs.add(rank)
        outputs.write(rank, "stdout", f"{rank} without an end")
        outputs.write(rank, "stderr", "last words\n")
        outputs.forget(rank - 16)
        for stream in ("stdout", "stderr"):
            outputs.end(rank, stream)
    assert shown.getvalue().splitlines()[-1] == b"[199]<stdout>:199 without an end"
    assert (tmp_path / "rank.7/stdout").read_text() == "7 without an end"
    assert [line.text for line in outputs.last_lines(199)] == ["last words"] and outputs.last_lines(7) == []
    assert not any(str(tmp_path) in os.readlink(f"/proc/self/fd/{one}") for one in open_descriptors())
    outputs.close()


def open_descriptors() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: wrong\n'


def with_prefix(ranks: str, text: str) -> str:
    return "".join(f"[{ranks}]<stderr>:{line}\n" for line in text.splitlines())


def test_equal_tracebacks_are_shown_once_with_their_ranks() -> None:
    terminal = io.BytesIO()
    outputs = Outputs(5, {"stdout": terminal, "stderr": terminal})
    for rank in (2, 0, 1, 4):
        outputs.write(rank, "stderr", "a warning\n" + TRACEBACK if rank == 2 else TRACEBACK)
    outputs.end(0, "stderr")
    outputs.write(3, "stderr", TRACEBACK.replace("wrong", "other"))
    assert terminal.getvalue().decode() == "[2]<stderr>:a warning\n"
    due = outputs.next_time()
    assert due is not None
    outputs.show_unended(due + 1)
    shown = terminal.getvalue().decode()
    assert shown == "[2]<stderr>:a warning\n" + with_prefix("0-2,4", TRACEBACK) + with_prefix(
        "3", TRACEBACK.replace("wrong", "other")
    )
    assert outputs.next_time() is None
    assert [line.text for line in outputs.last_lines(4)][-1] == "ValueError: wrong"


def test_a_traceback_is_shown_before_horovodruns_own_words_and_at_the_end() -> None:
    terminal = io.BytesIO()
    outputs = Outputs(2, {"stdout": terminal, "stderr": terminal})
    outputs.write(0, "stderr", TRACEBACK)
    outputs.end_line("stderr")
    assert terminal.getvalue().decode() == with_prefix("0", TRACEBACK)
    outputs.write(1, "stderr", f"in a line: {TRACEBACK}")  # no line begins with it
    assert terminal.getvalue().decode().count("ValueError") == 2
    outputs.write(0, "stderr", TRACEBACK.rstrip("\n"))
    outputs.end(0, "stderr")
    outputs.close()
    assert terminal.getvalue().decode().endswith(with_prefix("0", TRACEBACK))
