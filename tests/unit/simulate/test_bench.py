# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.bench`: the flags that are refused, and what `link` finds of a host that is slower meanwhile."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horovod.bench import link
from horovod.bench.__main__ import parser
from horovod.simulate.links import link_of
from horovod.world.files.whole import write_whole

UNFIT = ("0", "-1", "nan", "inf", "1e7", "ten")


@pytest.mark.parametrize(
    ("command", "flag", "values"),
    [
        ("link", "--seconds", UNFIT),
        ("link", "--gbit", UNFIT),
        ("allreduce", "--seconds", UNFIT),
        ("gradients", "--seconds", UNFIT),
        ("allreduce", "--np", ("0", "-1", "2.5")),
        ("gradients", "--rounds", ("0", "-1", "2.5")),
        ("strategies", "--rounds", ("0", "-1", "100001")),
    ],
)
def test_numbers_that_measure_nothing_are_refused(
    command: str, flag: str, values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for value in values:
        with pytest.raises(SystemExit) as raised:
            parser().parse_args([command, f"{flag}={value}"])
        assert raised.value.code == 2
        assert f"{flag}: {value!r}: expected a number from " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nodir/x.json", "cannot write nodir/x.json: No such file or directory\nhint: give a file in a folder that "),
        ("/dev/full", "cannot write /dev/full: No space left on device\nhint: "),
        (".", "cannot write .: Is a directory\nhint: "),
        ("", "an empty name was given as json\nhint: give the name of a file\n"),
    ],
)
def test_a_record_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, name: str, text: str) -> None:
    command = [sys.executable, "-m", "horovod.bench", "strategies", "--json", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"horovod.bench: {text}") and done.stderr.count("\n") == 2


GOES_AWAY = """
import os, sys
from horovod.bench import __main__, record
check = record.check_writable
record.check_writable = lambda path: (check(path), os.rmdir("folder"))
sys.exit(__main__.main())
"""


@pytest.mark.slow("simulates many jobs")
def test_a_record_that_cannot_be_written_after_the_work_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    what = "allreduce -np 1 --sizes 4 --rounds 1 --seconds 0.001 --no-gloo --any-hop --json folder/record.json"
    command = [sys.executable, "-c", GOES_AWAY, *what.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    text = "horovod.bench: cannot write folder/record.json: No such file or directory\n"
    assert (done.returncode, done.stderr) == (1, text), done


@pytest.mark.parametrize(
    ("gbit", "nominal", "note"),
    [
        (None, 15.0, None),
        (20.0, 20.0, None),
        (10.0, 15.0, "--gbit 10 does not fit this rate: the file has 15.00 in its place"),
        (1e6, 15.0, "--gbit 1e+06 does not fit this rate: the file has 15.00 in its place"),
    ],
)
def test_a_rate_that_the_measured_one_contradicts_is_not_taken_in_silence(
    tmp_path: Path, gbit: float | None, nominal: float, note: str | None
) -> None:
    content, said = link._link(2, gbit, [1e-4], [15.0], [0.1])
    assert (content["gbit"], said) == (nominal, note)
    write_whole(tmp_path / "link.json", str(content).replace("'", '"'))
    assert link_of(str(tmp_path / "link.json")).utilisation == (15 / nominal, 15 / nominal)


class Host:
    """A clock, and a host on which moving data interrupts every tenth piece of work."""

    Sum = None

    def __init__(self, interrupted_ms: float, polls: int) -> None:
        self.now = 0.0
        self.pieces = 0
        self.is_moving = False
        self.interrupted_ms = interrupted_ms
        self.polls = polls

    def work(self) -> None:
        self.pieces += 1
        self.now += 1e-3
        if self.is_moving and self.pieces % 10 == 0:
            self.now += 1e-3 * self.interrupted_ms

    def allreduce_async_(self, array: object, name: str, op: object) -> int:
        self.is_moving = True
        self.left = self.polls
        return 1

    def poll(self, handle: int) -> bool:
        self.left -= 1
        return self.left <= 0

    def synchronize(self, handle: int) -> None:
        self.is_moving = False

    def barrier(self) -> None:
        assert not self.is_moving

    def allgather_object(self, value: Any) -> list[Any]:
        return [value]


@pytest.mark.parametrize(("interrupted_ms", "expected"), [(0, 0.0), (7, 0.7), (1000, 5.0)])
def test_work_that_is_interrupted_rarely_and_for_long_is_found_slower(
    monkeypatch: pytest.MonkeyPatch, interrupted_ms: float, expected: float
) -> None:
    host = Host(interrupted_ms, 50)
    monkeypatch.setattr(link, "hvd", host)
    monkeypatch.setattr(link, "_work", lambda: host.work)
    monkeypatch.setattr(link, "time", SimpleNamespace(perf_counter=lambda: host.now, monotonic=lambda: host.now))
    found = link._slower(2.0)
    assert len(found) >= 3 and found == pytest.approx([expected] * len(found))


def test_a_piece_of_work_is_a_millisecond_although_the_first_call_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([0.01])
    monkeypatch.setattr(link, "_took", lambda call: next(times_s, 2e-5))
    assert inspect.getclosurevars(link._work()).nonlocals["calls"] == 50
