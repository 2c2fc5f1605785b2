# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all: what is left, and what is said, if the disk has no room."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from horovod.launcher.job.redaction import Redaction
from horovod.world import report
from horovod.world.files.whole import check_writable, write_whole


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """Files of this process have at most 100 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("before", [None, "before"])
def test_without_room_the_file_is_as_before_and_the_error_names_it(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "page.html"
    if before is not None:
        path.write_text(before)
    with no_room(), pytest.raises(OSError, match="File too large") as raised:
        write_whole(path, "x" * 200)
    assert raised.value.filename == str(path)
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == ({} if before is None else {path.name: before})


def test_a_file_is_replaced_through_a_link_and_a_device_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", "one")
    write_whole(tmp_path / "link", "\u00fc")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text("utf-8") == "\u00fc"
    write_whole("/dev/null", "nothing")
    assert Path("/dev/null").is_char_device()


def test_a_check_leaves_no_trace_and_says_what_writing_would(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    os.mkfifo(tmp_path / "pipe")
    for name in ("new", "there", "pipe", "/dev/null"):
        check_writable(tmp_path / name)
    assert (tmp_path / "there").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "there"]
    for name in ("none/new", "there/new", ".", "/dev/full"):
        with pytest.raises(OSError) as writing:
            write_whole(tmp_path / name, "text")
        with pytest.raises(OSError) as checking:
            check_writable(tmp_path / name)
        assert (checking.value.errno, checking.value.filename) == (writing.value.errno, str(tmp_path / name))


def test_a_rank_names_the_part_of_the_report_that_has_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with no_room():
        report.end(str(tmp_path), 3, 1, {"tensors": "9" * 200})
    path = tmp_path / "statistics" / "rank.3.json"
    said = f"horovod: warning: cannot write a part of the report: {path}: File too large; training goes on\n"
    assert capsys.readouterr().err == said and list(path.parent.iterdir()) == []


def test_output_without_room_for_its_redacted_copy_is_named_and_stays(tmp_path: Path) -> None:
    log = tmp_path / "stdout"
    log.write_text("swordfish " * 20)
    with no_room(), pytest.raises(OSError, match="File too large") as raised:
        Redaction("swordfish").file(log)
    assert raised.value.filename == str(log) and [one.name for one in tmp_path.iterdir()] == ["stdout"]
