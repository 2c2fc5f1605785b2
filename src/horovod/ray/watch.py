# SPDX-License-Identifier: Apache-2.0
"""The wait for what the ranks were asked, and its end: the first failure ends the work of the others.

A rank that waits in a collective gets the cause at once, by an abort of its world. A rank that has not returned
GRACE_S later is killed. So a wait takes that long at most after the first failure.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from horovod.core.exceptions import HorovodInternalError, RankLostError, named
from horovod.ray.coordinator import Coordinator

__all__ = ["GRACE_S", "Crew", "RankTraceback", "cause_of", "first_lines"]

GRACE_S = 3.0
_LOOK_S = 1.0
_LOOK_FOR_LOGS_S = 0.1
_LONGEST = 500  # characters of a cause
_GUESSES = re.compile(r"(Some common causes include|There are some potential root causes)")  # of Ray's, at any death
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MARKS = re.compile(r"\s*[\^~]+\s*")


class RankTraceback(Exception):
    """The cause of a rank's exception in the driver: its traceback, as text."""

    is_of_rank = True

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


@dataclasses.dataclass
class _Failure:
    rank: int
    error: BaseException
    told: str  # the other ranks
    trace: str = ""

    @property
    def is_consequence(self) -> bool:
        """True of an error by which a rank has heard of another one's."""
        return isinstance(self.error, HorovodInternalError) and bool(self.trace)


class Crew:
    """The actors of a job, by rank. `places`: where each is, in words. Any thread may call."""

    def __init__(self, workers: Sequence[Any], places: Sequence[str]) -> None:
        self.workers = list(workers)
        self.places = list(places)
        self.coordinator: Coordinator | None = None
        self.has_failed = False  # so that its world has ended
        self.lost: dict[int, str] = {}  # why, by rank

    def wait(self, refs: Sequence[Any], look: Callable[[], None] | None = None) -> list[Any]:
        """The values of these ObjectRefs, one of each rank.

        `look` is called again and again meanwhile. Raises the first cause, as its own type; RankLostError if an actor
        has died. An exception in the driver, such as KeyboardInterrupt, ends the ranks' work first.
        """
        try:
            values, failures = self._gather(refs, look)
        except BaseException as error:
            self._end(dict(zip(refs, range(len(refs)), strict=True)), f"the driver raised {named(error)}"[:_LONGEST])
            raise
        if failures:
            first = next((one for one in failures if not one.is_consequence), failures[0])
            raise first.error from (RankTraceback(first.trace) if first.trace else None)
        return [values[rank] for rank in range(len(refs))]

    def watch(self, refs: Sequence[Any]) -> None:
        """Ends the work of the other ranks after the first failure, while the caller has the ObjectRefs."""

        def follow() -> None:
            try:
                self._gather(refs, None, keep=False)
            except RayError:
                if ray.is_initialized():  # else the program is at its end
                    raise

        threading.Thread(target=follow, name="horovod-ray-watch", daemon=True).start()

    def _gather(
        self, refs: Sequence[Any], look: Callable[[], None] | None, keep: bool = True
    ) -> tuple[dict[int, Any], list[_Failure]]:
        pending = {ref: rank for rank, ref in enumerate(refs)}
        values: dict[int, Any] = {}
        failures: list[_Failure] = []
        while pending and not failures and (keep or ray.is_initialized()):
            for ref in ray.wait(list(pending), timeout=_LOOK_FOR_LOGS_S if look else _LOOK_S)[0]:
                self._take(ref, pending.pop(ref), values, failures, keep)
            if look is not None:
                look()
        if failures:
            for ref, rank in self._end(pending, failures[0].told, failures[0].rank):
                self._take(ref, rank, values, failures, keep)
        return values, failures

    def _take(self, ref: Any, rank: int, values: dict[int, Any], failures: list[_Failure], keep: bool) -> None:
        try:
            value = ray.get(ref)
            if keep:
                values[rank] = value
        except RayTaskError as error:
            cause = cause_of(error, f"rank {rank}")
            told = f"rank {rank} raised {named(cause)}"[:_LONGEST]
            failures.append(_Failure(rank, cause, told, f"rank {rank} ({self.places[rank]}):\n{readable(str(error))}"))
        except RayError as error:
            if rank in self.lost:  # it was killed here
                return
            self.lost[rank] = text = f"rank {rank} ({self.places[rank]}) was lost: {first_lines(error)}"
            failures.append(_Failure(rank, RankLostError(text, rank), text))

    def _end(self, pending: dict[Any, int], why: str, failed_rank: int = -1) -> list[tuple[Any, int]]:
        """Ends the work of these ranks; what they have returned, in order of time."""
        if pending or self.lost:  # else all others have returned well
            self.has_failed = True
        if self.coordinator is not None and failed_rank >= 0:
            self.coordinator.gone(failed_rank, why)
        until = time.monotonic() + GRACE_S
        told = [self.workers[rank].abort.remote(why, GRACE_S) for rank in pending.values() if rank not in self.lost]
        ended, left = [], dict(pending)
        while left and (left_s := until - time.monotonic()) > 0:
            for ref in ray.wait(list(left), timeout=left_s)[0]:
                ended.append((ref, left.pop(ref)))
        for rank in left.values():
            self.lost.setdefault(rank, f"rank {rank} was ended: it had not returned {GRACE_S:g} s after {why}")
            ray.kill(self.workers[rank])
        if told and not left:
            # An abort that comes late would end the next world.
            ray.wait(told, num_returns=len(told), timeout=GRACE_S)
        return ended


def cause_of(error: RayTaskError, who: str) -> Exception:
    """The exception that an actor has raised, or one that says why its result did not come."""
    text = str(error)
    if "cloudpickle" in text and "horovod/ray/worker.py" not in text:  # after the call
        return RuntimeError(f"the result of {who} cannot be pickled: {error.cause}")
    return error.cause if isinstance(error.cause, Exception) else RuntimeError(text)


def first_lines(error: RayError) -> str:
    """Ray's reason, without what it says of the actor."""
    unwanted = ("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:")
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(unwanted))
    return textwrap.shorten(_GUESSES.split(text)[0].strip(), _LONGEST, placeholder=" ...")


def readable(text: str) -> str:
    """Ray's text of a traceback without colours, and without the marks below lines of code that Ray has left out."""
    kept: list[str] = []
    for line in _COLOURS.sub("", text).splitlines():
        if not _MARKS.fullmatch(line) or (kept and kept[-1].startswith("    ") and not _MARKS.fullmatch(kept[-1])):
            kept.append(line)
    return "\n".join(kept)
