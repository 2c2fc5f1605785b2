# SPDX-License-Identifier: Apache-2.0
"""A benchmark's table and record: what was measured, on what, from which commit, by which command, with the raw data.

A figure means something only beside the cache-line hop it was measured at (whether the ranks' cores share a cache), and
machines move between the states: a record whose hop changed meanwhile is not written.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horovod import __version__
from horovod import core as hvd
from horovod.core.wording import counted, tell
from horovod.simulate.arguments import check_file_name
from horovod.simulate.errors import InputError
from horovod.world.files.whole import check_writable, write_whole
from horovod.world.machine import machine

__all__ = ["ANY_HOP", "Session", "hop_changed", "json_problem", "refused", "write_record"]

# Two measurements of one placement differ by less than this.
_HOP_FACTOR = 1.5
_WARM_UP_CALLS = 100
ANY_HOP = "write the record even if the cache-line hop changed meanwhile"  # of a flag


class Session:
    """One run's output, on rank 0: the others print and write nothing. Joins the job.

    any_hop: write the record even if the hop changed meanwhile.
    """

    def __init__(
        self, path: str | None, program: Sequence[str] = ("python", "-m", "horovod.bench"), any_hop: bool = False
    ) -> None:
        hvd.init()
        self._any_hop = any_hop
        self._program = program
        self.rows: list[dict[str, Any]] = []
        self._path = path
        self._before: dict[str, Any] = {}
        self._why_no_gloo = ""

    def begin(self, why_no_gloo: str) -> None:
        _warm_up()
        self._before = hvd.statistics()
        self._why_no_gloo = why_no_gloo
        facts = [f"{name} {self._before[name]}" for name in ("transport", "isa", "stores") if name in self._before]
        self.print(f"{counted(hvd.size(), 'rank')}, {', '.join(facts)}")
        if why_no_gloo:
            self.print(f"Gloo: not run, {why_no_gloo}")

    def print(self, line: str) -> None:
        if hvd.rank() == 0:
            tell(line, sys.stdout)

    def end(self) -> int:
        """Writes the record. Returns the exit code: 1 if the hop changed meanwhile, and nothing is written."""
        _warm_up()
        after = hvd.statistics()
        hops = [facts.get("hop_ns") for facts in (self._before, after)]
        self.print(f"cache-line hop before and after: {_hop_text(hops[0])}, {_hop_text(hops[1])}")
        if hvd.rank() != 0 or self._path is None:
            return 0
        # Ranks that take turns on cores have no fixed placement.
        is_placed = hvd.local_size() <= len(os.sched_getaffinity(0)) and not self._any_hop
        if is_placed and hop_changed(*hops):
            tell("the cache-line hop changed: no record is written\nhint: run it again")
            return 1
        facts = {"ranks": hvd.size(), "before": self._before, "after": after, "gloo": self._why_no_gloo}
        write_record(self._path, self._program, {**facts, "rows": self.rows})
        tell(f"record written to {self._path}", sys.stdout)
        return 0


def _warm_up() -> None:
    """The engine measures the hop anew on the way; a start at which the ranks shared a core has not measured it."""
    payload = np.zeros(1 << 20, np.float32)
    for _ in range(_WARM_UP_CALLS):
        hvd.allreduce_(payload, name="bench.warm-up", op=hvd.Sum)


def hop_changed(before_ns: int | None, after_ns: int | None) -> bool:
    """True if the two figures come from different placements. None and 0 mean "not measured"."""
    if not before_ns or not after_ns:
        return bool(before_ns) != bool(after_ns)
    return max(before_ns, after_ns) > _HOP_FACTOR * min(before_ns, after_ns)


def _hop_text(hop_ns: int | None) -> str:
    return f"{hop_ns} ns" if hop_ns else "not measured (no shared memory, or ranks take turns on a core)"


def json_problem(path: str | None) -> str | None:
    """Why rank 0 cannot write the file of --json, in all ranks; None if it can. Joins the job."""
    hvd.init()
    problem: str | None = hvd.broadcast_object(_problem(path) if hvd.rank() == 0 and path is not None else None, 0)
    return problem


def refused(problem: str) -> int:
    """Runs in every rank. Returns the exit code: of rank 0 alone 1, so that horovodrun names the rank that said why."""
    if hvd.rank() != 0:
        return 0
    tell(f"horovod.bench: {problem}")
    return 1


def _problem(path: str) -> str | None:
    try:
        check_file_name("json", path)
        check_writable(path)
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"cannot write {path}: {error.strerror}\nhint: give a file in a folder that exists and can be written to"
    return None


def write_record(path: str, program: Sequence[str], measured: dict[str, Any]) -> None:
    """Writes one JSON file. `program`: the command without its arguments. Raises OSError if it cannot."""
    record = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": [*program, *sys.argv[1:]],
        "version": __version__,
        "commit": _commit(),
        "machine": machine(),
        "python": platform.python_version(),
        **measured,
    }
    write_whole(path, json.dumps(record, indent=1) + "\n")


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def _commit() -> str | None:
    """The commit of the source tree that this package lies in, with "+" if files differ.

    Of an installed package: the commit of the tree in the working directory, if its files are the same. Otherwise None.
    """
    here = Path(__file__).resolve().parent
    tree = Path("src/horovod").resolve()
    if all(_same(path, tree / path.relative_to(here.parent)) for path in here.parent.rglob("*.py")):
        here = tree
    try:
        result = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty=+"], capture_output=True, text=True
        )
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
