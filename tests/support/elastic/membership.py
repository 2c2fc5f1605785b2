# SPDX-License-Identifier: Apache-2.0
"""The pure driver of elastic jobs, with what it has ordered, for tests of single decisions."""

from __future__ import annotations

from typing import Any

from horovod.elastic import messages as m
from horovod.elastic.decide.job import Rules
from horovod.elastic.decide.membership import begin, step

TWO_HOSTS = (("a", 2), ("b", 2))


class Driver:
    """A driver and what it has ordered. Workers answer as they should unless a test says otherwise."""

    def __init__(self, hosts: tuple[tuple[str, int], ...] = TWO_HOSTS, **rules: Any) -> None:
        slots = sum(count for _, count in hosts)
        self.rules = Rules(**{"np": slots, "min_np": 1, **rules})
        self.job, self.orders = begin(hosts, self.rules)

    def on(self, *events: m.Event) -> list[m.Order]:
        """The orders that follow from these events."""
        found: list[m.Order] = []
        for event in events:
            self.job, orders = step(self.job, event, self.rules)
            found += orders
        self.orders = tuple(found)
        return found

    def all_ready(self) -> Driver:
        self.on(*(m.Ready(worker.number, 0, m.NO_STATE) for worker in self.job.workers))
        return self

    def leave(self, *numbers: int, cut: int = 1, orderly: bool = True) -> list[m.Order]:
        state = (self.job.generation, cut)
        return self.on(*(m.Ready(number, self.job.generation, state, orderly) for number in numbers))

    def ends(self, *numbers: int, at_s: float = 0.0) -> list[m.Order]:
        return self.on(*(m.Ended(number, "was killed (SIGKILL)", at_s) for number in numbers))

    @property
    def record(self) -> m.WorldRecord:
        assert self.job.record is not None
        return self.job.record

    @property
    def ranks(self) -> list[int]:
        return [worker.number for worker in self.record.members]

    def told(self, kind: type) -> list[int]:
        return [order.worker for order in self.orders if isinstance(order, m.Tell) and isinstance(order.message, kind)]

    def started(self) -> list[m.Place]:
        return [order.worker.place for order in self.orders if isinstance(order, m.Start)]

    @property
    def outcome(self) -> str:
        return next((order.outcome for order in self.orders if isinstance(order, m.End)), "")
