# SPDX-License-Identifier: Apache-2.0
"""The driver of an elastic job: feeds membership.py with events, carries its orders out, and runs the timers.

It has no thread and opens nothing: the launcher calls it (launcher/job/elastic_job.py), and it reaches processes
through `LauncherPort` and workers through `RendezvousPort`, which is the rendezvous.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from horovod.core.wording import counted
from horovod.elastic.decide.job import LIVE, OVER, JobState, Rules, is_full, missing, unfinished, waits
from horovod.elastic.decide.membership import step
from horovod.elastic.decide.ranks import identities, in_rank_order
from horovod.elastic.decide.running_wait import RunningWait
from horovod.elastic.messages import (
    WHOLE_HOST,
    AskStack,
    Blacklist,
    CooledDown,
    End,
    Ended,
    Event,
    Kill,
    Left,
    Listed,
    Lost,
    Message,
    Order,
    Place,
    Raised,
    Ready,
    Stack,
    Start,
    Stop,
    Tell,
    Timeout,
    Timer,
    Worker,
    WorldRecord,
)
from horovod.elastic.words import Report, packed
from horovod.world.topology import Identity, Topology

__all__ = ["Driver", "LauncherPort", "Limits", "RendezvousPort"]

_REFILL_S, _REFILL_MOST_S = 1.0, 60.0  # before a failed worker's slot is used again: once, then twice as long, ...
_SHOWN_LOSSES = 5
# A process whose training function has raised is about to end. It is reported after the first time, and killed after
# the second.
_TELL_RAISED_S, _END_RAISED_S = 3.0, 30.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """All in seconds.

    `start_s`: how long a worker of the first world may take until it is ready, once another one is. `join_s`: how long
    one may that is started later. `cooldown`: for how long a host is not used after so many failures; None: for good.
    `start_name`: of start_s, for the user.
    """

    slots_s: float
    straggler_s: float
    settle_s: float
    start_s: float
    join_s: float
    cooldown: Callable[[int], float | None]
    start_name: str = "--start-timeout"


class LauncherPort(Protocol):
    """The actions that the driver asks of the launcher."""

    def start(self, worker: Worker, planned: Identity, joins: bool) -> None:
        """Starts a process. `planned`: where it will be, most likely. `joins`: a job that runs already."""

    def kill(self, number: int, why: str) -> None:
        """Kills a process; its end is the answer. `why` completes "worker 3 ..."."""

    def see_off(self, number: int) -> None:
        """The worker was told to stop: it has a moment to end by itself."""

    def over(self, outcome: str, text: str) -> None:
        """The job is over."""

    def tell(self, text: str) -> None:
        """For the person at the terminal."""


class RendezvousPort(Protocol):
    """Where workers meet and get their words: core.rendezvous_server.RendezvousServer."""

    def lead(self, generation: int, places: list[dict[str, Any]]) -> None: ...

    def tell(self, worker: int, word: Any) -> None: ...

    def gone(self, rank: int, text: str) -> None: ...

    def record_failure(self, rank: int, text: str) -> None: ...

    def forget_worker(self, worker: int) -> None: ...


class Driver:
    """One job. Not thread-safe."""

    def __init__(self, rules: Rules, limits: Limits, launcher: LauncherPort, rendezvous: RendezvousPort) -> None:
        self.job = JobState()
        self.lost = 0  # worlds that ended before their time
        self.losses: collections.deque[str] = collections.deque(maxlen=_SHOWN_LOSSES)  # why the last of them did
        self.led_s = 0.0  # when the newest world began, on the monotonic clock
        self._rules, self._limits, self._launcher, self._rendezvous = rules, limits, launcher, rendezvous
        self._is_lost = False  # the newest generation
        self._led = 0  # the newest generation that the rendezvous knows
        self._cooldowns: dict[Place, float] = {}
        self._wait = RunningWait(
            {
                Timer.SETTLE: limits.settle_s,
                Timer.STRAGGLERS: limits.straggler_s,
                Timer.SLOTS: limits.slots_s,
                Timer.STARTS: limits.slots_s,
                Timer.ENDS: limits.straggler_s,
            }
        )
        self._first_came_s: float | None = None
        self._started_s: dict[int, float] = {}  # by worker, of those that have not come and may still do
        self._raised: dict[int, _RaisedIn] = {}  # by worker, of those that have not ended yet
        self._left_well: dict[int, Ended] = {}  # workers that have ended with success in the midst of their world

    # what happens

    def happens(self, event: Event) -> None:
        """An event that membership.py knows."""
        if isinstance(event, Ready):
            self._comes(event.worker)
        before = self.job.record
        self.job, orders = step(self.job, event, self._rules)
        is_over = any(isinstance(order, End) for order in orders)
        for order in orders:
            if not (is_over and isinstance(order, Blacklist)):  # that place is not used again
                self._carry_out(order, event, before)
        while self._left_well and self.job.phase != LIVE:
            self._end(self._left_well.popitem()[1])
        if self.job.phase == OVER:
            self._raised.clear()  # all have been told to stop, and those that do not are ended soon
        self._wait.follow(waits(self.job, self._rules), self.job.generation, time.monotonic())

    def reports(self, report: Report) -> None:
        """A worker says something."""
        if isinstance(report, Stack):
            self._launcher.tell(f"worker {report.worker}, which the others wait for, is at:\n{report.text}")
            return
        self._raised.pop(report.worker, None)  # a script may catch the error and go on
        if isinstance(report, Raised) and any(worker.number == report.worker for worker in self.job.workers):
            self._raised[report.worker] = _RaisedIn(time.monotonic(), report.error.partition("\n")[0])
        self.happens(report)

    def list_hosts(self, hosts: Sequence[tuple[str, int]]) -> None:
        """The hosts that can be used now, with their slots."""
        self.happens(Listed(tuple(hosts)))

    def worker_ended(self, number: int, how: str, well: bool, error: str = "") -> None:
        """A process is gone. `how` completes "worker 3 ..."; `well`: its script came to its end. `error`: if not, why.

        A member that has ended well has finished its share, also without the wrapper around its training. What it
        leaves behind is a loss only if the others have to meet again.
        """
        if well and number not in self.job.come:
            how = f"{how} without joining the training"
        raised = self._raised.pop(number, None)
        error = error if raised is None else raised.error
        how = how if well or not error else f"{how} ({error})"
        ended = Ended(number, how, time.monotonic())
        if well and number in self.job.members and self.job.phase == LIVE:
            self._left_well[number] = ended
            self.happens(Left(number))
        else:
            self._end(ended)

    def _comes(self, number: int) -> None:
        now = time.monotonic()
        self._first_came_s = now if self._first_came_s is None else self._first_came_s
        started_s = self._started_s.pop(number, None)
        worker = next((worker for worker in self.job.workers if worker.number == number), None)
        if self.job.phase == LIVE and worker is not None and started_s is not None and number not in self.job.told:
            ready = f"worker {number} on {worker.host} is ready after {now - started_s:.1f} s"
            then = "waits in reserve" if is_full(self.job, self._rules) else "joins at the next commit"
            self._launcher.tell(f"{ready}; it {then}")

    def _end(self, ended: Ended) -> None:
        record, job = self.job.record, self.job
        if record is not None and ended.worker in job.members and job.phase != OVER:
            rank = _rank_in(record, ended.worker)
            text = f"rank {rank} (worker {ended.worker} on {record.members[rank].host}) {ended.how}"
            self._rendezvous.record_failure(rank, text)
            self._rendezvous.gone(rank, text)
        self._rendezvous.forget_worker(ended.worker)
        self._started_s.pop(ended.worker, None)
        self.happens(ended)

    # orders

    def _carry_out(self, order: Order, event: Event, before: WorldRecord | None) -> None:
        """`before`: the record as it was when the event came."""
        match order:
            case Start(worker):
                self._started_s[worker.number] = time.monotonic()
                self._launcher.start(worker, self._planned(worker), joins=self.job.generation > 0)
            case Kill(number, why):
                late = f"was ended: it did not leave its world within {self._limits.straggler_s:g} s"
                self._launcher.kill(number, why or late)
            case Tell(number, message):
                if isinstance(event, Ready) and isinstance(message, Lost):
                    self._has_left(event.worker, message, before)
                self._tell(number, message)
            case Blacklist(place, failures):
                assert isinstance(event, Ended)
                self._blacklist(place, failures, f"worker {event.worker} on {place[0]} {event.how}; ")
            case End(outcome, text):
                self._launcher.over(outcome, text)

    def _planned(self, worker: Worker) -> Identity:
        """The worker's place in a next world of all workers that are started now, as far as there is room."""
        job = self.job
        others = [other for other in job.workers if other.number not in job.told and other != worker]
        # A joiner is never rank 0: scripts write on rank 0, and it would write a second time.
        first = min(others) if others and job.generation else min([worker, *others])
        root = job.record.members[0] if job.record and job.record.members[0] in others else first
        members = list(dict.fromkeys([worker, root, *others]))
        if self._rules.max_np is not None:
            members = members[: max(self._rules.max_np, 2)]
        order = in_rank_order(members, root.number, [host for host, _ in job.hosts])
        planned = identities(order)[order.index(worker)]
        # By its slot, although a lower one may be empty now: a script chooses its device by this number.
        return dataclasses.replace(planned, local_rank=worker.slot, local_size=max(planned.local_size, worker.slot + 1))

    def _has_left(self, number: int, lost: Lost, before: WorldRecord | None) -> None:
        """Tells the other members, which may still form this world, that a worker has left it."""
        if before is None or before.generation != lost.generation:
            return
        if any(member.number == number for member in before.members):
            rank = _rank_in(before, number)
            self._rendezvous.gone(rank, f"rank {rank} (worker {number}) has left generation {before.generation}")

    def _tell(self, number: int, message: Message) -> None:
        if isinstance(message, WorldRecord) and message.generation > self._led:
            self._lead(message)
        elif isinstance(message, Lost):
            self._is_lost = True
        self._rendezvous.tell(number, packed(message))
        if isinstance(message, Stop):
            self._launcher.see_off(number)

    def _lead(self, record: WorldRecord) -> None:
        self._led, self.led_s = record.generation, time.monotonic()
        self._rendezvous.lead(record.generation, _places(record.members))
        if record.generation > 1:
            root = record.members[0]
            generation, cut = record.base
            what = f"the state of commit {cut} of generation {generation}" if cut else "a state that has no commit yet"
            state = f"with {what}, from worker {root.number} on {root.host}"
            self._launcher.tell(
                f"generation {record.generation}: {record.reason}; "
                f"{counted(len(record.members), 'worker goes on', 'workers go on')}, "
                + (state if record.sync else "all hold the same state")
            )
        if self._is_lost:
            self.lost += 1
            self.losses.append(record.reason)
        self._is_lost = False

    def _blacklist(self, place: Place, failures: int, cause: str) -> None:
        host, slot = place
        if slot != WHOLE_HOST:
            seconds: float | None = min(_REFILL_S * 2 ** (failures - 1), _REFILL_MOST_S)
            self._launcher.tell(f"{cause}slot {slot} of host {host} gets another worker in {seconds:g} s")
        else:
            seconds = self._limits.cooldown(failures)
            ends = "is no longer used" if seconds is None else f"is not used for {seconds:.0f} s"
            hint = "\nhint: --blacklist-cooldown-range lets hosts come back" if seconds is None else ""
            self._launcher.tell(f"{cause}host {host} {ends}: {counted(failures, 'worker')} failed there{hint}")
        self._cooldowns.pop(place, None)
        if seconds is not None:
            self._cooldowns[place] = time.monotonic() + seconds

    # time

    def next_time(self) -> float | None:
        """When `on_time` has something to do, on the monotonic clock."""
        starts = [at for at, _ in self._start_limits().values()]
        raised = [one.next_at for one in self._raised.values() if one.next_at is not None]
        return min([*self._cooldowns.values(), *self._wait.times(), *starts, *raised], default=None)

    def on_time(self) -> None:
        """To be called when that time has come, and at any other."""
        now = time.monotonic()
        for place in [place for place, at in self._cooldowns.items() if at <= now]:
            del self._cooldowns[place]
            self.happens(CooledDown(place))
        for number, (at, limit_s) in self._start_limits().items():
            if at <= now:
                del self._started_s[number]
                flag = "HOROVOD_ELASTIC_JOIN_SECONDS" if self.job.generation else self._limits.start_name
                self._launcher.kill(number, f"was ended: it was not ready within {limit_s:g} s ({flag})")
        for number, one in self._raised.items():
            self._look_at_raised(number, one, now)
        if news := self._wait.news(now):
            self._launcher.tell(news)
        if self._wait.is_to_ask(now):
            for worker in missing(self.job) if self.job.phase != LIVE else unfinished(self.job):
                self._rendezvous.tell(worker.number, packed(AskStack()))
        if timer := self._wait.run_out(now):
            self.happens(Timeout(timer))

    def _look_at_raised(self, number: int, one: _RaisedIn, now: float) -> None:
        """A script's thread may keep such a process alive, and the others wait for it."""
        if one.next_at is None or now < one.next_at:
            return
        if not one.is_told:
            rest = f"it is killed in {_END_RAISED_S - _TELL_RAISED_S:g} s"
            self._launcher.tell(f"worker {number} raised {one.error}, but its process still runs: {rest}")
            one.is_told = True
        else:
            one.is_killed = True
            self._launcher.kill(number, f"was killed: it ran on for {_END_RAISED_S:g} s after its error")

    def put_off(self, seconds: float) -> None:
        """The whole job, and this process, stood still for so long: nothing is late because of that."""
        self._wait.put_off(seconds)
        for one in self._raised.values():
            one.at += seconds
        self._cooldowns = {place: at + seconds for place, at in self._cooldowns.items()}
        self._started_s = {number: at + seconds for number, at in self._started_s.items()}
        if self._first_came_s is not None:
            self._first_came_s += seconds

    def _start_limits(self) -> dict[int, tuple[float, float]]:
        """By worker that has not come: until when it may take, and how long that is.

        All that are started at first may take as long as the first of them, and then some.
        """
        job, limits = self.job, self._limits
        if job.phase == OVER:
            return {}
        starting = {number: at for number, at in self._started_s.items() if number not in job.told}
        if job.generation:
            return {number: (at + limits.join_s, limits.join_s) for number, at in starting.items()}
        came_s = self._first_came_s
        if came_s is None:
            return {}
        return {number: (max(at, came_s) + limits.start_s, limits.start_s) for number, at in starting.items()}


@dataclasses.dataclass
class _RaisedIn:
    """An exception that a worker's training function has raised, and when."""

    at: float
    error: str
    is_told: bool = False
    is_killed: bool = False

    @property
    def next_at(self) -> float | None:
        return None if self.is_killed else self.at + (_END_RAISED_S if self.is_told else _TELL_RAISED_S)


def _rank_in(record: WorldRecord, number: int) -> int:
    return [member.number for member in record.members].index(number)


def _places(members: Sequence[Worker]) -> list[dict[str, Any]]:
    """By rank, what a worker is told of its place.

    The engines number the ranks of a host by rank; `shown` is what the script sees, which goes by slot.
    """
    hosts = list(dict.fromkeys(member.host for member in members))
    topology = Topology.of([[rank for rank, one in enumerate(members) if one.host == host] for host in hosts])
    return [
        {**dataclasses.asdict(own), "hostname": member.host, "shown": dataclasses.asdict(shown)}
        for member, own, shown in zip(members, topology.identities(), identities(members), strict=True)
    ]
