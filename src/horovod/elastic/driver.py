# SPDX-License-Identifier: Apache-2.0
"""The driver of an elastic job: feeds membership.py with events, carries its orders out, and runs the timers.

It has no thread and opens nothing: the launcher calls it (launcher/elastic_job.py), and it reaches processes through
`Hands` and workers through `Office`, which is the rendezvous.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from horovod.core.topology import Identity, Topology
from horovod.core.wording import counted
from horovod.elastic import job as jobs
from horovod.elastic.job import GATHER, OVER, Job, Rules, waits
from horovod.elastic.membership import step
from horovod.elastic.messages import (
    WHOLE_HOST,
    Attend,
    End,
    Ended,
    Event,
    Finished,
    Kill,
    Listed,
    Lost,
    Message,
    Order,
    Pardoned,
    Place,
    Start,
    Stop,
    Tell,
    Timeout,
    Timer,
    Withhold,
    Worker,
    World,
)
from horovod.elastic.ranks import identities, in_rank_order
from horovod.elastic.words import packed

__all__ = ["Driver", "Hands", "Limits", "Office"]

_TELL_AFTER_S = 10.0  # what is waited for so long is said
_REFILL_S, _REFILL_MOST_S = 1.0, 60.0  # before a failed worker's slot is used again: once, then twice as long, ...


@dataclasses.dataclass(frozen=True)
class Limits:
    """All in seconds. `cooldown`: for how long a host is not used after so many failures; None: for good."""

    slots_s: float
    straggler_s: float
    settle_s: float
    start_s: float
    cooldown: Callable[[int], float | None]


class Hands(Protocol):
    """What the driver asks the launcher to do."""

    def start(self, worker: Worker, planned: Identity, joins: bool) -> None:
        """Starts a process. `planned`: where it will be, most likely. `joins`: a job that runs already."""

    def kill(self, number: int) -> None:
        """Kills a process; its end is the answer."""

    def see_off(self, number: int) -> None:
        """The worker was told to stop: it has a moment to end by itself."""

    def over(self, outcome: str, text: str) -> None:
        """The job is over."""

    def tell(self, text: str) -> None:
        """For the person at the terminal."""


class Office(Protocol):
    """Where workers meet and get their words: core.rendezvous_server.RendezvousServer."""

    def lead(self, generation: int, places: list[dict[str, Any]]) -> None: ...

    def tell(self, worker: int, word: Any) -> None: ...

    def gone(self, rank: int, text: str) -> None: ...

    def record_failure(self, rank: int, text: str) -> None: ...

    def forget_worker(self, worker: int) -> None: ...


class Driver:
    """One job. Not thread-safe."""

    def __init__(self, rules: Rules, limits: Limits, hands: Hands, office: Office) -> None:
        self.job = Job()
        self.losses: list[str] = []  # why generations ended before their time
        self._rules, self._limits, self._hands, self._office = rules, limits, hands, office
        self._is_lost = False  # the newest generation
        self._led = 0  # the newest generation that the office knows
        self._pardons: list[tuple[float, Place]] = []
        self._wait: tuple[str, float, float | None] | None = None  # what for, since when, and until when
        self._timer: tuple[Timer | None, int] | None = None
        self._said_of_wait = False
        self._first_came_s: float | None = None
        self._left_well: dict[int, Ended] = {}  # workers that have ended with success in the midst of their world

    # what happens

    def happens(self, event: Event) -> None:
        """An event that membership.py knows."""
        if isinstance(event, Attend) and self._first_came_s is None:
            self._first_came_s = time.monotonic()
        self.job, orders = step(self.job, event, self._rules)
        for order in orders:
            self._carry_out(order, event)
        self._follow_waits()

    def list_hosts(self, hosts: Sequence[tuple[str, int]]) -> None:
        """The hosts that can be used now, with their slots."""
        self.happens(Listed(tuple(hosts)))

    def worker_ended(self, number: int, how: str, well: bool) -> None:
        """A process is gone. `how` completes "worker 3 ..."; `well`: its script came to its end.

        A member that has ended well has finished its share, also without the wrapper around its training. What it
        leaves behind is a loss only if the others have to meet again.
        """
        ended = Ended(number, how, time.monotonic())
        if well and number in self.job.members and self.job.phase == jobs.LIVE:
            if number not in self.job.finished:
                self.happens(Finished(number, self.job.generation, (self.job.generation, 0)))
            if self.job.phase == jobs.LIVE:
                self._left_well[number] = ended
                return
        self._end(ended)
        if self.job.phase != jobs.LIVE:
            for one in [self._left_well.pop(one) for one in list(self._left_well)]:
                self._end(one)

    def _end(self, ended: Ended) -> None:
        record, job = self.job.record, self.job
        if record is not None and ended.worker in job.members and job.phase != OVER:
            rank = [member.number for member in record.members].index(ended.worker)
            text = f"rank {rank} (worker {ended.worker} on {record.members[rank].host}) {ended.how}"
            self._office.record_failure(rank, text)
            self._office.gone(rank, text)
        self._office.forget_worker(ended.worker)
        self.happens(ended)

    # orders

    def _carry_out(self, order: Order, event: Event) -> None:
        match order:
            case Start(worker):
                self._hands.start(worker, self._planned(worker), joins=self.job.generation > 0)
            case Kill(number):
                self._hands.kill(number)
            case Tell(number, message):
                self._tell(number, message, event)
            case Withhold(place, failures):
                self._withhold(place, failures)
            case End(outcome, text):
                self._hands.over(outcome, text)

    def _planned(self, worker: Worker) -> Identity:
        """Its place if all that are started now, and nobody else, were in the next world."""
        others = [other for other in self.job.workers if other.number not in self.job.told]
        members = [worker, *(other for other in others if other.number != worker.number)]
        record = self.job.record
        root = record.members[0].number if record and record.members[0] in members else members[0].number
        root = min(other.number for other in members) if not self.job.generation else root
        order = in_rank_order(members, root, [host for host, _ in self.job.hosts])
        return identities(order)[order.index(worker)]

    def _tell(self, number: int, message: Message, event: Event) -> None:
        if isinstance(message, World) and message.generation > self._led:
            self._lead(message)
        elif isinstance(message, Lost):
            self._is_lost = True
        if isinstance(message, Lost) and isinstance(event, Attend):
            # Whoever still forms this world waits for a worker that has left it.
            rank = [member.number for member in self._record().members].index(event.worker)
            self._office.gone(rank, f"rank {rank} (worker {event.worker}) has left generation {message.generation}")
        self._office.tell(number, packed(message))
        if isinstance(message, Stop):
            self._hands.see_off(number)

    def _record(self) -> World:
        assert self.job.record is not None
        return self.job.record

    def _lead(self, record: World) -> None:
        self._led = record.generation
        self._office.lead(record.generation, _places(record.members))
        if record.generation > 1:
            root = record.members[0]
            generation, cut = record.base
            what = f"the state of commit {cut} of generation {generation}" if cut else "a state that has no commit yet"
            state = f"with {what}, from worker {root.number} on {root.host}"
            self._hands.tell(
                f"generation {record.generation}: {record.reason}; "
                f"{counted(len(record.members), 'worker goes on', 'workers go on')}, "
                + (state if record.sync else "all hold the same state")
            )
        self.losses += [record.reason] * self._is_lost
        self._is_lost = False

    def _withhold(self, place: Place, failures: int) -> None:
        host, slot = place
        if slot != WHOLE_HOST:
            seconds: float | None = min(_REFILL_S * 2 ** (failures - 1), _REFILL_MOST_S)
            self._hands.tell(f"slot {slot} of host {host} gets another worker in {seconds:g} s")
        else:
            seconds = self._limits.cooldown(failures)
            ends = "is no longer used" if seconds is None else f"is not used for {seconds:.0f} s"
            hint = "\nhint: --blacklist-cooldown-range lets hosts come back" if seconds is None else ""
            self._hands.tell(f"host {host} {ends}: {counted(failures, 'worker')} failed there{hint}")
        if seconds is not None:
            self._pardons.append((time.monotonic() + seconds, place))

    # time

    def next_time(self) -> float | None:
        """When `on_time` has something to do, on the monotonic clock."""
        times = [at for at, _ in self._pardons]
        if self._wait is not None:
            _, since, until = self._wait
            times += [] if until is None else [until]
            times += [] if self._said_of_wait else [since + _TELL_AFTER_S]
        until = self._starts_until()
        return min(times if until is None else [*times, until], default=None)

    def on_time(self) -> None:
        """To be called when that time has come, and at any other."""
        now = time.monotonic()
        due = [place for at, place in self._pardons if at <= now]
        self._pardons = [(at, place) for at, place in self._pardons if at > now]
        for place in due:
            self.happens(Pardoned(place))
        until = self._starts_until()
        if until is not None and now >= until:
            self._first_came_s = now  # whoever is killed now is waited for anew
            for worker in self.job.workers:
                if worker.number not in self.job.come:
                    self._hands.kill(worker.number)
        if self._wait is None:
            return
        text, since, end = self._wait
        if not self._said_of_wait and now >= since + _TELL_AFTER_S:
            self._said_of_wait = True
            self._hands.tell(f"waiting for {text}" + self._what_ends(end, now))
        if end is not None and now >= end and self._timer is not None and self._timer[0] is not None:
            timer, self._timer = self._timer[0], None
            self.happens(Timeout(timer))

    def _starts_until(self) -> float | None:
        """The first world is that of all that were started: until when they may take."""
        if self.job.generation or self._first_came_s is None or self.job.phase != GATHER:
            return None
        if all(worker.number in self.job.come for worker in self.job.workers):
            return None
        return self._first_came_s + self._limits.start_s

    def _follow_waits(self) -> None:
        wait = waits(self.job, self._rules)
        timer = None if wait is None else (wait.timer, self.job.generation)
        if timer == self._timer:
            if wait is not None and self._wait is not None:
                self._wait = wait.text, *self._wait[1:]
            return
        self._timer, self._said_of_wait = timer, False
        now = time.monotonic()
        self._wait = None if wait is None else (wait.text, now, self._until(wait.timer, now))

    def _until(self, timer: Timer | None, now: float) -> float | None:
        limits = self._limits
        seconds = {Timer.SETTLE: limits.settle_s, Timer.STRAGGLERS: limits.straggler_s, Timer.SLOTS: limits.slots_s}
        return None if timer is None else now + seconds[timer]

    def _what_ends(self, end: float | None, now: float) -> str:
        if end is None or self._timer is None:
            return ""
        left_s = f"{end - now:.0f} s"
        if self._timer[0] == Timer.STRAGGLERS:
            return f"; they are ended in {left_s} (HOROVOD_ELASTIC_STRAGGLER_SECONDS)"
        return f"; the job ends in {left_s} (--elastic-timeout)"


def _places(members: Sequence[Worker]) -> list[dict[str, Any]]:
    """By rank, what a worker is told of its place.

    The engines number the ranks of a host by rank; `shown` is what the script sees, which goes by slot.
    """
    hosts = list(dict.fromkeys(member.host for member in members))
    topology = Topology.of([[rank for rank, one in enumerate(members) if one.host == host] for host in hosts])
    return [
        {**dataclasses.asdict(topology.identity(rank)), "hostname": member.host, "shown": dataclasses.asdict(shown)}
        for rank, (member, shown) in enumerate(zip(members, identities(members), strict=True))
    ]
