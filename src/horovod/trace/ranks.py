# SPDX-License-Identifier: Apache-2.0
"""One rank's events, in order: how long it communicated, how long its script was blocked meanwhile, and its steps."""

from __future__ import annotations

import array
import collections
from typing import Any

from horovod.trace.waits import Arrivals, Call

__all__ = ["WAIT", "Operation", "Rank", "Union"]

WAIT = "WAIT"
_NEGOTIATE = "NEGOTIATE_"
_STEP_OPERATIONS = ("ALLREDUCE", "REDUCESCATTER")
_KEPT_BYTES = 64  # of a tensor's name in a WAIT


class Union:
    """The time in which at least one of several spans is open, in microseconds."""

    def __init__(self) -> None:
        self.total_us = 0.0
        self._depth = 0
        self._since_us = 0.0

    def begin(self, now_us: float) -> None:
        if self._depth == 0:
            self._since_us = now_us
        self._depth += 1

    def end(self, now_us: float) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.total_us += max(0.0, now_us - self._since_us)

    def until(self, now_us: float) -> float:
        """The time so far."""
        return self.total_us + (max(0.0, now_us - self._since_us) if self._depth else 0.0)


class Operation:
    """All calls of one operation on one rank, in microseconds."""

    def __init__(self) -> None:
        self.times = 0
        self.negotiating_us = 0.0
        self.queued_us = 0.0
        self.data_us = 0.0
        self.bytes = 0


class Rank:
    """`tensors`: exposed microseconds and waits by tensor. `steps`: at each begin the time, and what was exposed."""

    def __init__(self, rank: int, arrivals: Arrivals) -> None:
        self.rank = rank
        self.first_us = self.last_us = 0.0
        self.busy, self.exposed = Union(), Union()
        self.for_ranks_us = self.for_data_us = 0.0
        self.tensors: dict[str, list[float]] = {}
        self.operations: dict[str, Operation] = collections.defaultdict(Operation)
        self.sizes: collections.Counter[int] = collections.Counter()
        self.lost = 0
        self.has_waits = False
        self.steps = [array.array("d") for _ in range(4)]  # begin; busy, for ranks, for data until then
        self._arrivals = arrivals
        self._names: dict[int, str] = {}
        self._open: dict[int, list[tuple[str, float, str]]] = collections.defaultdict(list)
        self._ready_us: dict[str, float] = {}
        self._seen: set[str] = set()

    def take(self, event: dict[str, Any]) -> None:
        """An event of this rank. Ends without a begin, after lost events, are left out."""
        phase, name, tid = event["ph"], event["name"], event.get("tid", 0)
        if phase == "M":
            if name == "thread_name":
                self._names[tid] = str((event.get("args") or {}).get("name", ""))
            return
        now = float(event.get("ts", 0.0))
        self.first_us = now if self.first_us == 0.0 else min(self.first_us, now)
        self.last_us = max(self.last_us, now)
        detail = str((event.get("args") or {}).get("tensor", ""))
        if name == "EVENTS_LOST":
            self.lost += int((event.get("args") or {}).get("events", 0))
        elif phase == "B":
            self._begin(tid, name, now, detail)
        elif phase == "E":
            self._end(tid, name, now, detail)

    def unfinished(self) -> list[tuple[str, str, float]]:
        """The spans without an end in the file: event, tensor, and the time of the begin."""
        found = []
        for tid, spans in self._open.items():
            for name, begun, detail in spans[:1]:
                found.append((name, detail if name == WAIT else self._names.get(tid, ""), begun))
        return sorted(found, key=lambda span: span[2])

    def waiting(self) -> list[Call]:
        """Return the calls for which other ranks had not come when the file ended."""
        return [
            Call(self.rank, name.removeprefix(_NEGOTIATE), self._names.get(tid, ""), begun)
            for tid, spans in self._open.items()
            for name, begun, _ in spans
            if name.startswith(_NEGOTIATE)
        ]

    def step_lengths_us(self) -> list[float]:
        begins = self.steps[0]
        return [after - before for before, after in zip(begins, begins[1:], strict=False)]

    def _begin(self, tid: int, name: str, now: float, detail: str) -> None:
        spans = self._open[tid]
        if name == WAIT:
            self.has_waits = True
            self.exposed.begin(now)
        else:
            if not spans:
                self.busy.begin(now)
            operation = name.removeprefix(_NEGOTIATE)
            if operation != name and operation in _STEP_OPERATIONS:
                self._count_step(self._names.get(tid, ""), now)
        spans.append((name, now, detail))

    def _end(self, tid: int, name: str, now: float, detail: str) -> None:
        spans = self._open[tid]
        place = next((place for place in reversed(range(len(spans))) if spans[place][0] == name), None)
        if place is None:
            return
        _, begun, waited_for = spans.pop(place)
        tensor = self._names.get(tid, "")
        if name == WAIT:
            self.exposed.end(now)
            self._count_wait(waited_for, begun, now)
            return
        if not spans:
            self.busy.end(now)
        if name.startswith(_NEGOTIATE):
            operation = name.removeprefix(_NEGOTIATE)
            self.operations[operation].negotiating_us += now - begun
            self._ready_us[_kept(tensor)] = now
            self._arrivals.ready(self.rank, operation, tensor, begun, now)
        elif name == "QUEUE" and spans:
            self.operations[spans[-1][0]].queued_us += now - begun
        elif spans:  # the transport's
            self.operations[spans[-1][0]].data_us += now - begun
        else:
            counted = self.operations[name]
            counted.times += 1
            size = _bytes_of(detail)
            if size is not None:
                counted.bytes += size
                self.sizes[size] += 1

    def _count_step(self, tensor: str, now: float) -> None:
        """A step begins with the first tensor, and with each that comes again."""
        if self._seen and tensor not in self._seen:
            self._seen.add(tensor)
            return
        self._seen = {tensor}
        values = now, self.busy.until(now), self.for_ranks_us, self.for_data_us
        for column, value in zip(self.steps, values, strict=True):
            column.append(value)

    def _count_wait(self, tensor: str, begun: float, now: float) -> None:
        ready = min(max(self._ready_us.get(tensor, now), begun), now)
        self.for_ranks_us += ready - begun
        self.for_data_us += now - ready
        row = self.tensors.setdefault(tensor, [0.0, 0.0])
        row[0] += now - begun
        row[1] += 1


def _kept(name: str) -> str:
    """Return the name, cut as in a WAIT event."""
    return name if len(name) < _KEPT_BYTES // 4 else name.encode()[:_KEPT_BYTES].decode(errors="ignore")


_ITEM_BYTES = {"bool": 1, "bfloat16": 2}


def _bytes_of(detail: str) -> int | None:
    """Of `float32 [3, 4]`; None if it is not that."""
    dtype, space, rest = detail.partition(" [")
    lengths, bracket, more = rest.partition("]")
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    if not space or not bracket or more or not (dtype in _ITEM_BYTES or digits.isdecimal()):
        return None
    count = _ITEM_BYTES.get(dtype) or int(digits) // 8
    for length in filter(None, lengths.split(", ")):
        count *= int(length) if length.isdecimal() else 0
    return count
