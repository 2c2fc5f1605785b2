# SPDX-License-Identifier: Apache-2.0
"""A step of membership.py under way, and what many events have in common. Pure."""

from __future__ import annotations

from typing import Any

from horovod.elastic.decide.job import GATHER, JobState, Rules
from horovod.elastic.messages import Lost, Message, Order, Stop, Tell, Update

__all__ = ["Turn"]


class Turn:
    """The state as it becomes, and the orders so far."""

    def __init__(self, job: JobState, rules: Rules) -> None:
        self.job = job
        self.rules = rules
        self.orders: list[Order] = []

    def set(self, **changes: Any) -> None:
        self.job = self.job._replace(**changes)

    def tell(self, worker: int, message: Message) -> None:
        self.orders.append(Tell(worker, message))

    def tell_members(self, message: Message) -> None:
        for worker in self.job.workers:
            if worker.number in self.job.members:
                self.tell(worker.number, message)

    def leave_world(self, orderly: bool) -> None:
        """Ends the newest world. A loss is told to all members; at a cut all of them leave by themselves."""
        if not orderly and not self.job.lost:
            self.tell_members(Lost(self.job.generation))
        self.set(phase=GATHER, lost=self.job.lost or not orderly, settling=False)

    def announce(self, flags: int) -> None:
        """Tells the members to leave at their next cut, if they do not know it yet."""
        job = self.job
        if job.announced | flags != job.announced:
            self.set(updates=job.updates + 1, announced=job.announced | flags)
            self.tell_members(Update(self.job.updates, self.job.announced))

    def stop(self, number: int) -> None:
        self.set(told=self.job.told | {number}, waiting=tuple(item for item in self.job.waiting if item[0] != number))
        self.tell(number, Stop())
