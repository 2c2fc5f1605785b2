# SPDX-License-Identifier: Apache-2.0
"""Deadlines that only a hang reaches: they are renewed while processes that this one has started run, or could.

    wait_until(path.exists, job.shown)                           # asks again and again; what it shows if it gives up
    patiently(lambda wait_s: process.wait(timeout=wait_s))       # for calls that raise at a timeout
    be_late(0.02, pids)                                          # a sleep while these processes wait for this one

A process that has run, or waited for a core, for SHARE of the limit since the last renewal renews it. A rank that
waits for others, asks every 10 ms or sends signs of life does less, unless the machine is very busy. What never ends
and does run is found by pytest's limit, which shows all stacks, too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

LIMIT_S = 120.0
SHARE = 0.03
_ASK_AGAIN_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_NAP_S, _CALM_LOOKS = 0.002, 3
T = TypeVar("T")


def be_late(seconds: float, pids: Iterable[int] = ()) -> None:
    """Sleeps that long, once all threads of the other processes are blocked: on a busy machine they may be late.

    Sleeps longer if the machine pauses this process, and with it perhaps the others.
    """
    others = [Path(f"/proc/{pid}/task") for pid in pids if pid != os.getpid()]
    calm = 0
    while calm < _CALM_LOOKS:
        time.sleep(_NAP_S)
        calm = calm + 1 if all(map(_is_blocked, others)) else 0
    while seconds > 0:
        before = time.monotonic()
        time.sleep(min(seconds, _NAP_S))
        seconds -= min(time.monotonic() - before, 2 * _NAP_S)


def _is_blocked(tasks: Path) -> bool:
    try:
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in tasks.iterdir())
    except OSError:  # a thread has ended
        return False


def seconds_of_descendants(with_waits: bool = False) -> dict[int, float]:
    """Processor seconds of each process below this one, with those of children that it has waited for, by pid.

    with_waits: and the seconds that its threads have waited for a core.
    """
    parents, seconds = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            parents[int(entry)], seconds[int(entry)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_PER_S
            seconds[int(entry)] += _waited_for_a_core_s(entry) if with_waits else 0.0

    def is_below(pid: int) -> bool:
        return parents.get(pid) == os.getpid() or (pid in parents and is_below(parents[pid]))

    return {pid: used_s for pid, used_s in seconds.items() if is_below(pid)}


def busy_seconds_of_descendants() -> dict[int, float]:
    return seconds_of_descendants(with_waits=True)


def _waited_for_a_core_s(pid: str) -> float:
    statistics = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))  # not every kernel has them
    return sum(int(path.read_text().split()[1]) for path in statistics) / 1e9


class Patience:
    """A deadline that is renewed while there is progress. `seconds`: of running or waiting for a core, by pid."""

    def __init__(
        self,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        seconds: Callable[[], dict[int, float]] = busy_seconds_of_descendants,
    ) -> None:
        self._limit_s, self._clock, self._seconds = limit_s, clock, seconds
        self._used_s: dict[int, float] | None = None  # when it was first looked at, or renewed
        self._deadline = clock() + limit_s
        self._next_look = clock() + limit_s / 20

    def left_s(self) -> float:
        """How long to wait before this is asked again; 0.0 if the time is up."""
        now = self._clock()
        if now >= min(self._next_look, self._deadline):
            self._next_look = now + self._limit_s / 20
            used_s = self._seconds()
            before_s = used_s if self._used_s is None else self._used_s
            works = any(used - before_s.get(pid, 0.0) >= SHARE * self._limit_s for pid, used in used_s.items())
            self._used_s = used_s if works else before_s
            self._deadline = now + self._limit_s if works else self._deadline
        return max(0.0, min(self._deadline, self._next_look) - now)

    def ask(self, question: Callable[[float], T]) -> T:
        """The first answer of `question(timeout_s)` that is true; the last one when the time is up."""
        while True:
            left_s = self.left_s()
            if (answer := question(left_s)) or not left_s:
                return answer


def wait_until(condition: Callable[[], T], shown: Callable[[], object] | None = None, limit_s: float = LIMIT_S) -> T:
    """Asks until the answer is true, and returns it."""
    answer = Patience(limit_s).ask(lambda _: condition() or time.sleep(_ASK_AGAIN_S))
    assert answer, f"waited in vain: {shown() if shown else condition}"
    return answer


def patiently(
    ask: Callable[[float], T],
    limit_s: float = LIMIT_S,
    errors: Any = (TimeoutError, subprocess.TimeoutExpired, queue.Empty),
) -> T:
    """What `ask(timeout_s)` returns; it is asked again after one of these errors."""
    patience = Patience(limit_s)
    while True:
        left_s = patience.left_s()
        try:
            return ask(left_s)
        except errors:
            if not left_s:
                raise
