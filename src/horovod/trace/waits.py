# SPDX-License-Identifier: Apache-2.0
"""The ranks that came last: the calls of a file's ranks, which share a clock, met by operation, name and number."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable

__all__ = ["Arrivals", "Call", "Late"]

_PENDING = 200_000  # calls that wait for other ranks' events; members of process sets never get those of all ranks
_ABSENT_US = 100e3  # ranks that are killed end one after the other, and each writes its events every few ms
_OF_TWO_RANKS = ("SEND", "RECEIVE")
_SHORT_US = 20.0  # waits below are not counted as late, as in hvd.statistics()["arrivals"]


@dataclasses.dataclass
class Late:
    """Lateness of one rank. `waited_us`: it waited for others; the rest: it came last, and the others waited."""

    waited_us: float = 0.0
    agreeing_us: float = 0.0  # after the last of this file had come: agreement, and ranks of other hosts
    times: int = 0
    caused_us: float = 0.0
    longest_us: float = 0.0


@dataclasses.dataclass(frozen=True)
class Call:
    """One that waits for other ranks."""

    rank: int
    operation: str
    tensor: str
    begun_us: float


class Arrivals:
    """Feed it with `begun` and `ready`; after `finish`, `by_rank` and `by_tensor` (microseconds) are complete."""

    def __init__(self, ranks: list[int]) -> None:
        self._size = len(ranks)
        self.by_rank = {rank: Late() for rank in ranks}
        self.by_tensor: collections.Counter[str] = collections.Counter()
        self._numbers: collections.Counter[tuple[int, str, str]] = collections.Counter()
        self._pending: dict[tuple[str, str, int], dict[int, tuple[float, float]]] = {}

    def ready(self, rank: int, operation: str, tensor: str, begun_us: float, ready_us: float) -> None:
        """A call of `rank` has waited from `begun_us` to `ready_us` until all ranks had come."""
        number = self._numbers[rank, operation, tensor]
        self._numbers[rank, operation, tensor] = number + 1
        key = operation, tensor, number
        members = self._pending.setdefault(key, {})
        members[rank] = begun_us, ready_us
        if len(members) == self._size:
            self._count(tensor, self._pending.pop(key))
        elif len(self._pending) > _PENDING:
            oldest = next(iter(self._pending))
            self._count(oldest[1], self._pending.pop(oldest))

    def finish(self) -> None:
        while self._pending:
            (_, tensor, _), members = self._pending.popitem()
            self._count(tensor, members)

    def unfinished(self, calls: Iterable[Call], now_us: float) -> dict[tuple[str, str], list[int]]:
        """Counts waits that last until `now_us`. Returns the ranks that never called, by operation and tensor.

        A rank that took no part in earlier calls may not be in their process set, and is left out; so is one in join,
        which takes part in all, and calls between two ranks.
        """
        waiting: dict[tuple[str, str], dict[int, float]] = collections.defaultdict(dict)
        for call in calls:
            waiting[call.operation, call.tensor][call.rank] = call.begun_us
        joined = {rank for key in list(waiting) if key[1] == "join" for rank in waiting.pop(key)}
        missing = {}
        for (operation, tensor), begun in waiting.items():
            if operation in _OF_TWO_RANKS or now_us - min(begun.values()) < _ABSENT_US:
                continue
            numbers = {rank: self._numbers[rank, operation, tensor] for rank in self.by_rank}
            number = min(numbers[rank] for rank in begun)
            if any(other > number for other in numbers.values()):
                continue  # the file lacks the end of a wait
            members = [rank for rank in numbers if numbers[rank] == number]
            absent = [rank for rank in members if rank not in begun and rank not in joined]
            if absent:
                missing[operation, tensor] = absent
                self._count_absent(tensor, absent, {rank: now_us - since for rank, since in begun.items()})
        return missing

    def _count_absent(self, tensor: str, absent: list[int], waits: dict[int, float]) -> None:
        longest = max(waits.values())
        self.by_tensor[tensor] += round(sum(waits.values()))
        for rank, wait in waits.items():
            self.by_rank[rank].waited_us += wait
        for rank in absent:
            late = self.by_rank[rank]
            late.times += 1
            late.caused_us += sum(waits.values()) / len(absent)
            late.longest_us = max(late.longest_us, longest)

    def _count(self, tensor: str, members: dict[int, tuple[float, float]]) -> None:
        for group in _met(members):
            last = max(group, key=lambda rank: members[rank][0])
            last_us = members[last][0]
            waits = {rank: last_us - members[rank][0] for rank in group if rank != last}
            for rank in group:
                self.by_rank[rank].waited_us += waits.get(rank, 0.0)
                self.by_rank[rank].agreeing_us += max(0.0, members[rank][1] - last_us)
            longest = max(waits.values(), default=0.0)
            self.by_tensor[tensor] += round(sum(waits.values()))
            if longest >= _SHORT_US:
                late = self.by_rank[last]
                late.times += 1
                late.caused_us += sum(waits.values())
                late.longest_us = max(late.longest_us, longest)


def _met(members: dict[int, tuple[float, float]]) -> list[list[int]]:
    """Ranks that can have waited for each other: process sets may use equal names at other times."""
    groups: list[list[int]] = []
    until = 0.0
    for rank in sorted(members, key=lambda rank: members[rank]):
        begun, ready = members[rank]
        if groups and begun <= until:
            groups[-1].append(rank)
            until = min(until, ready)
        else:
            groups.append([rank])
            until = ready
    return groups
