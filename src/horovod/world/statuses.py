# SPDX-License-Identifier: Apache-2.0
"""The statuses of a job's ranks, and what is asked of the ranks.

Each rank sends its status about once a second to the job's rendezvous (core/telemetry/status.py). `horovodrun top` and
the summary at the end read them there (launcher/watch/). Pure, as the store, which holds it (rendezvous_store.py).
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

__all__ = ["Statuses"]

_BEFORE_S = 10.0  # rates are those of the last 10 to 20 s
_RANKS_A_SECOND = 500  # of a large job: each rank sends its status less often
_PAGE_BYTES = 512 << 10  # of statuses in an answer, which must fit a frame of 1 MiB; stacks are long
_CHOSEN_S = 1.0  # how long a choice of ranks to be sampled holds: choosing looks at all of them
_LEAST_SHARE = 0.02  # of the time, that a rank makes another one wait


@dataclasses.dataclass
class _Rank:
    """The statuses of one rank, each with the time at which it came."""

    newest: tuple[float, dict[str, Any]]
    before: tuple[float, dict[str, Any]]
    next_before: tuple[float, dict[str, Any]]


class Statuses:
    """Not thread-safe. Times are those of any one clock, in seconds. Statuses are objects of JSON."""

    def __init__(self) -> None:
        self.generation = 0
        self._size = 0
        self._ranks: dict[int, _Rank] = {}
        self._past: list[dict[str, Any]] = []  # of earlier generations: see _sum
        self._sampled: set[int] = set()
        self._chosen_s = -_CHOSEN_S
        self._stacks_wanted = 0  # the number of the newest request
        self._wanted_until_s = 0.0

    def put(self, generation: int, rank: int, size: int, status: dict[str, Any], now_s: float) -> dict[str, Any]:
        """Keeps a rank's status. The answer says when to send the next one, and what else is wanted of the rank."""
        if generation < self.generation:
            return {"next_s": 60.0}
        if generation > self.generation:
            if self._ranks:
                self._past.append(self._sum())
            self.generation, self._ranks = generation, {}
        self._size = size
        new = (now_s, status)
        known = self._ranks.get(rank)
        if known is None:
            self._ranks[rank] = _Rank(new, new, new)
        else:
            known.newest = new
            if now_s - known.next_before[0] >= _BEFORE_S:
                known.before, known.next_before = known.next_before, new
        if now_s - self._chosen_s >= _CHOSEN_S:
            self._sampled, self._chosen_s = self._to_be_sampled(), now_s
        answer = {"next_s": max(1.0, size / _RANKS_A_SECOND), "sample": rank in self._sampled}
        if self._stacks_wanted and now_s < self._wanted_until_s:
            answer["stacks"] = self._stacks_wanted
        return answer

    def view(self, first: int, now_s: float, page_bytes: float = _PAGE_BYTES) -> dict[str, Any]:
        """The statuses of the ranks from `first` on, a page. `next`: where the next page begins, if there is one."""
        answer: dict[str, Any] = {"generation": self.generation, "size": self._size, "ranks": {}}
        if first == 0:
            answer["past"] = self._past
        length = 0
        for rank in sorted(rank for rank in self._ranks if rank >= first):
            known = self._ranks[rank]
            row = {
                "age_s": now_s - known.newest[0],
                "newest": known.newest[1],
                "before_s": known.newest[0] - known.before[0],
                "before": {name: value for name, value in known.before[1].items() if name != "stacks"},
            }
            length += len(json.dumps(row))
            if length > page_bytes and answer["ranks"]:
                answer["next"] = rank
                break
            answer["ranks"][str(rank)] = row
        return answer

    def ask_stacks(self, now_s: float) -> int:
        """From now on, for a while, ranks add their stacks to their statuses, with the number that is returned."""
        self._stacks_wanted += 1
        self._wanted_until_s = now_s + 30.0
        return self._stacks_wanted

    def _to_be_sampled(self) -> set[int]:
        """The rank that most others wait for, and one that it is compared with."""
        blamed: dict[int, int] = {}
        for known in self._ranks.values():
            match known.newest[1].get("late"):
                case {"rank": int(rank), "share": float(share)} if share >= _LEAST_SHARE:
                    blamed[rank] = blamed.get(rank, 0) + 1
        if not blamed:
            return set()
        worst = max(blamed, key=blamed.__getitem__)
        others = [rank for rank in self._ranks if rank not in blamed] or [rank for rank in self._ranks if rank != worst]
        return {worst, *others[:1]}

    def _sum(self) -> dict[str, Any]:
        """A generation that has ended, in short."""
        newest = [known.newest[1] for known in self._ranks.values()]
        names = ("seconds", "steps", "bytes", "blocked_for_ranks_s", "blocked_for_data_s")
        most = {name: max((_number(status.get(name)) for status in newest), default=0.0) for name in names}
        return {"generation": self.generation, "size": self._size, **most}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
