# SPDX-License-Identifier: Apache-2.0
"""Names and texts of others reach the terminal as escapes, whoever prints them: a table of what prints."""

from __future__ import annotations

import json
import logging
import re
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from horovod.core import exceptions, tracebacks
from horovod.core.wording import of_system, quoted, shown, tell
from horovod.launcher import cli
from horovod.launcher.host.job_directory import say
from horovod.launcher.job.failure import Cause, Line, RankExit, last_words
from horovod.launcher.job.failure import report as failure_report
from horovod.launcher.job.supervision import Conclusion, Supervision
from horovod.launcher.watch import door, jobs, screen
from horovod.launcher.watch.facts import facts_of
from horovod.launcher.watch.stacks import _answers, grouped
from horovod.launcher.watch.summary import summary
from horovod.simulate.__main__ import main as simulate
from horovod.trace.__main__ import main as trace
from horovod.world import report
from horovod.world.job_files import JobFile

NAME = "x\x1b[31mRED\x07\x9b\u202e\u2028.py"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
ON_LINES = f"first\n{NAME}"


class Odd:
    def __repr__(self) -> str:
        return NAME


def status(rank: int) -> dict[str, Any]:
    """Rank 1 is late, and the others have seen where."""
    waits = {} if rank == 1 else {"1": 5.0}
    line = f"f ({NAME}:3)" if rank == 1 else "g (train.py:1)"
    part = NAME if rank == 1 else "forward"
    return {
        "pid": 1,
        "host": f"host {NAME}\n",
        "local_rank": rank,
        "seconds": 10.0,
        "steps": 100,
        "bytes": 5,
        "waiting_s": 0.0 if rank == 1 else 5.0,
        "framework_waits": 1,
        "by_rank": waits,
        "in_flight": 0,
        "late": None if rank == 1 else {"rank": 1, "since_step": 1, "since_s": 0.0, "share": 0.5},
        "sampled": {"samples": 100, "lines": [[part, line, 100]]},
    }


def view() -> dict[str, Any]:
    ranks = {str(rank): {"age_s": 1.0, "newest": status(rank), "before_s": 0.0, "before": {}} for rank in range(3)}
    return {"generation": 1, "size": 4, "ranks": ranks, "past": []}


def timeline(folder: Path) -> str:
    events: list[dict[str, Any]] = [
        {"name": "horovod", "ph": "M", "pid": 0, "args": {"session": "s", "start_monotonic_us": 1.0}},
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "rank 0"}},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": f"tensor\n{NAME}"}},
    ]
    for begin in (0, 100):
        for label, start, end in (("NEGOTIATE_ALLREDUCE", begin, begin + 40), ("ALLREDUCE", begin + 40, begin + 50)):
            events += [{"name": label, "ph": ph, "pid": 0, "tid": 1, "ts": ts} for ph, ts in (("B", start), ("E", end))]
    path = folder / f"timeline {NAME}"
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    return str(path)


def failed(folder: Path) -> None:
    """The last words of a job, by way of horovodrun's own printing."""
    lines = [Line(NAME, 1.0), Line(f"ValueError: {NAME}", 1.0)]
    text = failure_report(Cause(0, 1, ON_LINES), [RankExit(0, 1, 1.0)], NAME, lines)
    kept: list[Conclusion] = []
    of_job = types.SimpleNamespace(job=types.SimpleNamespace(prefix_timestamp=False), _end_line=str, _view=None)
    of_job._keep, of_job._print = kept.append, lambda text: Supervision._print(of_job, text)  # type: ignore[arg-type]
    Supervision.conclude_with(of_job, text)  # type: ignore[arg-type]
    tell("\n".join(last_words(0, None, lines)))
    assert not STEERS.search(kept[0].text)


def listed(folder: Path) -> None:
    file = JobFile("127.0.0.1", 5, b"s" * 32, 1, ON_LINES, 0.0)
    tell("  ".join(jobs._row(door.Running(file, view()))))


def page(folder: Path) -> None:
    trace(["summary", timeline(folder), "--html", str(folder / "page.html")])
    tell((folder / "page.html").read_text())
    assert not STEERS.search((folder / "page.html").read_text())


def warned(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracebacks.warn(NAME)
    print(caught[0].message)


WRITERS: dict[str, Callable[[Path], object]] = {
    "an error's name": lambda _: print(quoted(ON_LINES)),
    "an error's value": lambda _: print(shown(Odd())),
    "an error of the system": lambda _: tell(of_system(FileNotFoundError(2, "No such file", ON_LINES))),
    "a warning": warned,
    "a log": lambda _: logging.getLogger("horovod").warning("horovod: warning: %s", NAME),
    "an agent": lambda _: say(NAME),
    "the end of a job": failed,
    "the summary": lambda _: [tell(f"horovodrun: {line}") for line in summary(view(), 60.0)],
    "top": lambda _: tell(screen.plain("job", facts_of(view()), 200, 40)),
    "jobs": listed,
    "stacks": lambda _: tell(grouped({0: [{"thread": NAME, "frames": [f"{ON_LINES}:3 in {NAME}"]}]}, {})),
    "stacks of a rank that is silent": lambda _: tell(grouped({}, _answers(view(), 1)[1])),
    "an error of horovodrun": lambda _: cli.main(["-np", "1", NAME]),
    "an unknown job": lambda _: cli.main(["stacks", NAME]),
    "a part of a report": lambda folder: report.end(f"/dev/null/{NAME}", 0, 1, {}),
    "the summary of a timeline": lambda folder: trace(["summary", timeline(folder)]),
    "a page": page,
    "a timeline that is none": lambda folder: trace(["summary", f"{folder}/{NAME}"]),
    "a forecast": lambda folder: simulate(["forecast", NAME, "--link", "10gbit-tcp"]),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_printed_cannot_steer_the_terminal(
    writer: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("horovod")
    handler = logging.StreamHandler()
    log.addHandler(handler)
    try:
        WRITERS[writer](tmp_path)
    finally:
        log.removeHandler(handler)
    said = "".join(capfd.readouterr())
    assert "RED" in said and r"\x1b[31m" in said and r"\u202e" in said
    assert not STEERS.search(said)
    assert "\nx" not in said and "\n:3" not in said  # a name is on one line


OURS = {"HostsUpdatedInterrupt", "HorovodVersionMismatchError"}  # without a text of others
ERRORS = [name for name in exceptions.__all__ if name[0].isupper() and name[1].islower() and name not in OURS]


@pytest.mark.parametrize("name", ERRORS)
def test_the_texts_of_errors_are_plain(name: str) -> None:
    error = getattr(exceptions, name)
    assert not STEERS.search(str(error(NAME))) and r"\x1b[31mRED" in str(error(NAME))
    assert NAME in error(NAME).args  # as it was given
