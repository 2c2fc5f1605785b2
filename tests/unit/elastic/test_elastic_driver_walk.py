# SPDX-License-Identifier: Apache-2.0
"""The driver of an elastic job among simulated workers and hosts, at random, with a clock of the test's.

The model check (test_membership_model.py) goes through all orders of few events. Here are many events, and the driver's
own part: its timers, and the processes behind the workers. Whatever has happened, a job whose hosts then stay as they
are comes to its end in a bounded time.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
from support.extent import THOROUGH

from horovod.elastic import messages as m
from horovod.elastic.decide.job import BLAME_HOST, BLAME_WORKER, LIVE, SUCCESS, Rules
from horovod.elastic.drive.driver import Driver, Limits
from horovod.elastic.words import unpacked_message
from horovod.world.topology import Identity

LIMITS = Limits(50.0, 20.0, 1.0, 30.0, 40.0, lambda failures: min(2.0**failures, 30.0))
HOSTS = ("a", "b", "c")
WALKS = 2000 if THOROUGH else 150
STEPS = 150


@dataclasses.dataclass
class Process:
    """A worker. `world`: that it is in; it asks for one while there is none. `ends_as`: it is about to end."""

    place: tuple[str, int]
    world: m.WorldRecord | None = None
    left: int = 0
    held: m.StateId = m.NO_STATE
    cuts: int = 0
    asks: bool = False
    finished: bool = False
    update: bool = False
    ends_as: str = ""
    hangs: bool = False  # until it is killed


class Walk:
    """The launcher and the rendezvous of a driver, and what workers do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        monkeypatch.setattr("horovod.elastic.drive.driver.time.monotonic", lambda: self.now)
        self.processes: dict[int, Process] = {}
        self.worlds: dict[int, tuple[int, ...]] = {}  # members by generation
        self.inbox: list[tuple[int, m.Message]] = []
        self.outcome = ""
        most = self.random.choice([None, 2, 4])
        rules = Rules(
            np=2,
            min_np=self.random.choice([1, 2]),
            max_np=most,
            spares=0 if most is None else self.random.choice([0, 1]),
            blame=self.random.choice([BLAME_HOST, BLAME_WORKER]),
            cooldown=self.random.random() < 0.7,
            restart=self.random.random() < 0.5,
            settle=self.random.random() < 0.5,
        )
        self.most = most
        self.driver = Driver(rules, LIMITS, self, self)
        self.driver.list_hosts([("a", 2)])

    # launcher

    def start(self, worker: m.Worker, planned: Identity, joins: bool) -> None:
        assert worker.number not in self.processes, "numbers are used once"
        assert 0 <= planned.local_rank < planned.local_size and 0 <= planned.rank < planned.size
        assert all(one.place != worker.place for one in self.processes.values()), "a place has one process"
        self.processes[worker.number] = Process(worker.place)

    def kill(self, number: int, why: str) -> None:
        if number in self.processes:
            self.processes[number].ends_as = why

    def see_off(self, number: int) -> None:
        if number in self.processes and self.processes[number].hangs:
            self.kill(number, "was told to stop and did not")

    def over(self, outcome: str, text: str) -> None:
        assert not self.outcome
        self.outcome = outcome

    # of the launcher: for the person; of the rendezvous: for a worker

    def tell(self, *told: Any) -> None:
        if len(told) == 2:
            self.inbox.append((told[0], unpacked_message(told[1])))

    # rendezvous

    def lead(self, generation: int, places: list[dict[str, Any]]) -> None:
        record = self.driver.job.record
        assert record is not None and generation not in self.worlds
        assert not self.most or len(record.members) <= self.most
        self.worlds[generation] = tuple(member.number for member in record.members)
        assert set(self.worlds[generation]) <= set(self.processes), "nobody who is gone is in a world"

    def gone(self, rank: int, text: str) -> None:
        """The others of that world notice, if it still runs."""
        newest = max(self.worlds)
        for number in self.worlds[newest]:
            if number in self.processes and number != self.worlds[newest][rank]:
                self.inbox.append((number, m.Lost(newest)))

    def record_failure(self, rank: int, text: str) -> None: ...

    def forget_worker(self, worker: int) -> None: ...

    # workers

    def hear(self) -> None:
        """One worker reads one word."""
        if not self.inbox:
            return
        number, word = self.inbox.pop(0)
        one = self.processes.get(number)
        if one is None or one.hangs:
            return
        if isinstance(word, m.WorldRecord) and word.generation > one.left and one.asks:
            one.world, one.cuts, one.asks, one.finished, one.update = word, 0, False, False, False
            one.held = word.base if word.sync else one.held
        elif isinstance(word, m.Lost) and one.world is not None and one.world.generation == word.generation:
            self.leave(number, orderly=False)
        elif isinstance(word, m.Update):
            one.update = True
        elif isinstance(word, m.Stop | m.Done):
            one.ends_as = one.ends_as or "exited with code 0"

    def leave(self, number: int, orderly: bool) -> None:
        one = self.processes[number]
        assert one.world is not None
        one.left, one.world, one.asks = one.world.generation, None, True
        members = [] if orderly else self.worlds[one.left]
        apart = tuple(other for other in members if other != number and self.random.random() < 0.1)
        self.driver.happens(m.Ready(number, one.left, one.held, orderly, apart))

    def come(self) -> None:
        for number, one in self.some(lambda one: one.world is None and not one.asks and not one.left):
            one.asks = True
            self.driver.happens(m.Ready(number, 0, m.NO_STATE))

    def cut(self) -> None:
        """All members of a world do a step together, if none is missing."""
        if not self.worlds:
            return
        newest = max(self.worlds)
        members = [self.processes.get(number) for number in self.worlds[newest]]
        together = [one for one in members if one is not None and one.world is not None and not one.hangs]
        if len(together) < len(members) or any(one.world.generation != newest or one.finished for one in together):
            return
        for one in together:
            one.cuts += 1
            one.held = (newest, one.cuts)
        if any(one.update for one in together):
            for number in self.worlds[newest]:
                self.leave(number, orderly=True)

    def notice(self) -> None:
        """A worker sees that a member of its world hangs."""
        for number, _ in self.some(lambda one: one.world is not None and self._waits_in_vain(one.world)):
            self.leave(number, orderly=False)

    def look(self) -> None:
        """An agent ends a process that is frozen, if nobody is left in its world to notice."""
        for one in self.processes.values():
            together = [other for other in self.processes.values() if other.world == one.world and not other.hangs]
            if one.hangs and one.world is not None and not together:
                one.ends_as = one.ends_as or "was stopped by SIGSTOP"

    def _waits_in_vain(self, world: m.WorldRecord) -> bool:
        members = [self.processes.get(member.number) for member in world.members]
        return any(one is not None and one.hangs for one in members)

    def finish(self) -> None:
        for number, one in self.some(lambda one: one.world is not None and not one.finished):
            one.finished = True
            assert one.world is not None
            self.driver.happens(m.Finished(number, one.world.generation, one.held))

    def end(self) -> None:
        for number, one in self.some(lambda one: bool(one.ends_as), hanging=True):
            del self.processes[number]
            self.driver.worker_ended(number, one.ends_as, well=one.ends_as == "exited with code 0")

    def crash(self) -> None:
        for _, one in self.some(lambda one: not one.ends_as):
            one.ends_as = self.random.choice(["exited with code 1", "exited with code 1", "exited with code 0"])

    def hang(self) -> None:
        """In a world, or before the first one; not all that could notice it. Agents end what is frozen."""
        for number, one in self.some(lambda one: not one.asks and not one.finished):
            others = [other for n, other in self.processes.items() if n != number and not other.hangs]
            together = [other for other in others if other.world == one.world and (other.world or other.asks)]
            one.hangs = bool(together)

    def hosts(self) -> None:
        listed = [(host, self.random.randint(0, 2)) for host in HOSTS if self.random.random() < 0.7]
        self.driver.list_hosts([(host, slots) for host, slots in listed if slots])

    def wait(self) -> None:
        at = self.driver.next_time()
        longest = 5.0 if at is None else at - self.now
        self.now += max(0.0, self.random.choice([0.1, 1.0, longest]))
        self.driver.on_time()

    def some(self, fits: Callable[[Process], bool], hanging: bool = False) -> list[tuple[int, Process]]:
        found = [(n, one) for n, one in self.processes.items() if fits(one) and (hanging or not one.hangs)]
        return [self.random.choice(found)] if found else []

    def check(self) -> None:
        """A world that runs has members that live, or somebody will say that they do not."""
        if self.driver.job.phase == LIVE and not self.outcome:
            assert any(number in self.processes for number in self.worlds[max(self.worlds)])

    def goes_on(self) -> None:
        """Until the job is over, without further faults."""
        self.driver.list_hosts([("a", 2), ("b", 2)])
        for _ in range(5000):
            if self.outcome:
                return
            for act in (self.come, self.hear, self.look, self.end, self.cut, self.notice, self.finish):
                act()
            if not self.inbox:
                self.wait()
        raise AssertionError(f"at {self.now}: {self.driver.job}\n{self.processes}")


@pytest.mark.parametrize("seed", range(WALKS))
def test_every_job_comes_to_its_end(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    walk = Walk(monkeypatch, seed)
    usual = [walk.come, walk.hear, walk.cut, walk.end, walk.notice, walk.wait]
    rare = [walk.hosts, walk.crash, walk.hang, walk.finish]
    for _ in range(STEPS):
        walk.random.choice(usual * 4 + rare)()
        walk.check()
    walk.goes_on()
    assert walk.outcome == SUCCESS or walk.outcome.startswith("elastic-"), walk.outcome
