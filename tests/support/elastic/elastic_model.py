# SPDX-License-Identifier: Apache-2.0
"""Workers of an elastic job as a model, and all that can happen to them under the driver that ships.

A worker: Starting -> Waiting -> Forming -> (sYncing) -> Running -> at a Cut -> Running ... -> Done | Waiting -> ...
Its end: X, which the driver does not know yet, then Z. Collectives (forming, sync, cut) end on each member on its own:
with success as soon as all have arrived, even if one has died since; with an error as soon as one is dead, frozen or
gone. So collectives that only some complete are included. Messages keep their order; the end of a process reaches the
driver by another way, before or after its last messages.

In every state: one generation has one list of members; nobody is taken back by a sync; who does not sync has what rank
0 has; nobody is stopped without a reason; no two processes have one place. In every final state: no process is left,
and success means all cuts. Timers run only if a process is frozen or slots are lacking, so they hide no deadlock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from horovod.elastic import messages as m
from horovod.elastic.decide.job import GATHER, OVER, SUCCESS, JobState, Rules, missing, waits
from horovod.elastic.decide.membership import begin, step

MOST_GENERATIONS = 9  # more of them, with so few events, are worlds without end


class Process(NamedTuple):
    """A worker. `state` is what it believes; `passed` what is true: how many cuts its state holds, -1 for no state."""

    at: str = "-"
    host: str = ""
    slot: int = 0
    generation: int = 0
    members: frozenset[int] = frozenset()
    sync: bool = False
    base: m.StateId = m.NO_STATE
    root_passed: int = 0
    state: m.StateId = m.NO_STATE
    passed: int = -1
    arrivals: int = 0  # in this generation: 1 formed, 2 sync, 2 + k cut k
    cuts: tuple[int, ...] = ()  # what it knew of updates when it arrived at each cut of this generation
    seen: int = 0
    frozen: bool = False
    orderly: bool = False  # left its world after an agreed cut
    inbox: tuple[Any, ...] = ()
    outbox: tuple[Any, ...] = ()


class Config(NamedTuple):
    """`hosts`: slots at the start, and at most. `events`: kinds of what may happen, each as often as it stands here."""

    hosts: tuple[tuple[str, int, int], ...]
    cuts: int
    events: tuple[str, ...]
    rules: Rules


class Situation(NamedTuple):
    job: JobState
    processes: tuple[Process, ...]
    slots: tuple[int, ...]  # what discovery finds, by host of the configuration
    events: tuple[str, ...]


Moves = Iterator[tuple[str, Situation]]


class Found(NamedTuple):
    states: int
    generations: int
    outcomes: dict[str, int]
    error: str  # what is wrong, if anything
    trace: list[str]  # and how it came about


def explore(config: Config) -> Found:
    """Goes through every state that can be reached, breadth first; stops at the first that must not be."""
    first = beginning(config)
    parent: dict[int, tuple[int, str] | None] = {hash(first): None}  # by hash: 64 bits are enough for these numbers
    frontier, generations, key = [first], 0, 0
    outcomes: dict[str, int] = {}
    try:
        while frontier:
            following = []
            for situation in frontier:
                key, moves = hash(situation), 0
                for label, new in successors(situation, config):
                    moves += 1
                    new_key = hash(new)
                    if new_key not in parent:
                        parent[new_key] = key, label
                        generations = max(generations, new.job.generation)
                        following.append(new)
                if not moves:
                    check_end(situation, config)
                    outcomes[situation.job.outcome] = outcomes.get(situation.job.outcome, 0) + 1
            frontier = following
    except AssertionError as error:
        trace = []
        while (step_before := parent[key]) is not None:
            key, label = step_before
            trace.append(label)
        return Found(len(parent), generations, outcomes, str(error), trace[::-1])
    return Found(len(parent), generations, outcomes, "", [])


def beginning(config: Config) -> Situation:
    slots = tuple(now for _, now, _ in config.hosts)
    job, orders = begin(listing(config, slots), config.rules)
    return carried_out(Situation(JobState(), (), slots, config.events), job, orders)


def listing(config: Config, slots: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((host, count) for (host, _, _), count in zip(config.hosts, slots, strict=True) if count)


def check_end(situation: Situation, config: Config) -> None:
    job, processes = situation.job, situation.processes
    where = [(process.at, process.generation) for process in processes]
    assert job.phase == OVER, f"deadlock: the driver is in {job.phase}, workers {where}"
    for number, process in enumerate(processes):
        assert process.at == "Z", f"{number} is left behind in state {process.at}"
    if job.outcome == SUCCESS:
        assert all(processes[number].passed == config.cuts for number in job.members), "success without all cuts"


# The driver


def drive(situation: Situation, event: m.Event, config: Config) -> Situation:
    job, orders = step(situation.job, event, config.rules)
    return carried_out(situation, job, orders)


def carried_out(situation: Situation, job: JobState, orders: tuple[m.Order, ...]) -> Situation:
    assert job.generation <= MOST_GENERATIONS, "worlds without end"
    processes = list(situation.processes)
    for order in orders:
        if isinstance(order, m.Start):
            worker = order.worker
            same = [p for p in processes if (p.host, p.slot) == worker.place and p.at != "Z"]
            assert worker.number == len(processes) and not same, f"{worker} is started in a place that is taken"
            processes.append(Process("S", worker.host, worker.slot))
        elif isinstance(order, m.Kill):
            if processes[order.worker].at not in "XZ":
                processes[order.worker] = processes[order.worker]._replace(at="X", inbox=())
        elif isinstance(order, m.Tell):
            target = processes[order.worker]
            if isinstance(order.message, m.Stop):
                old, place = situation.job, (target.host, target.slot)
                reason = order.worker in old.told or job.phase == OVER or place not in job.listed
                assert reason, f"{order.worker} is stopped for nothing"
            if target.at not in "XZ":
                processes[order.worker] = target._replace(inbox=(*target.inbox, received(order.message, processes)))
    # What is only for people makes no difference between states.
    record = dataclasses.replace(job.record, reason="") if job.record and job.record.reason else job.record
    return situation._replace(job=job._replace(reasons=(), was_ready=False, record=record), processes=tuple(processes))


def received(message: m.Message, processes: list[Process]) -> tuple[Any, ...]:
    if isinstance(message, m.WorldRecord):
        members = frozenset(worker.number for worker in message.members)
        root = processes[message.members[0].number]
        return "world", message.generation, members, message.sync, message.base, root.passed
    if isinstance(message, m.Lost):
        return "lost", message.generation
    return ("update", message.number) if isinstance(message, m.Update) else ("stop",)


# What can happen next


def successors(situation: Situation, config: Config) -> Moves:
    """All that can happen next. Raises AssertionError for what must not be."""
    for number, process in enumerate(situation.processes):
        yield from talks(situation, number, process, config)
        if process.at in "XZ" or process.frozen:
            continue
        if process.inbox and process.at != "S":
            yield f"{number} reads {process.inbox[0]}", changed(situation, number, reads(situation, number, process))
        yield from works(situation, number, process, config)
    yield from outside(situation, config)
    yield from times_out(situation, config)


def changed(situation: Situation, number: int, process: Process) -> Situation:
    processes = situation.processes
    return situation._replace(processes=(*processes[:number], process, *processes[number + 1 :]))


def talks(situation: Situation, number: int, process: Process, config: Config) -> Moves:
    if process.outbox and process.at != "Z":
        event = process.outbox[0]
        heard = changed(situation, number, process._replace(outbox=process.outbox[1:]))
        yield f"the driver reads {event}", drive(heard, event, config)
    if process.at == "X":
        gone = changed(situation, number, process._replace(at="Z", outbox=(), inbox=()))
        yield f"the driver sees the end of {number}", drive(gone, m.Ended(number, "ended", 0.0), config)


def reads(situation: Situation, number: int, process: Process) -> Process:
    message, process = process.inbox[0], process._replace(inbox=process.inbox[1:])
    if message[0] == "world":
        _, generation, members, sync, base, root_passed = message
        if generation <= process.generation:
            return process  # repeated: what is not newer does not count
        assert process.at in "WD", f"{number} got a world in state {process.at}"
        same = [other.members for other in situation.processes if other.generation == generation]
        assert all(others == members for others in same), f"generation {generation} has two lists of members"
        assert sync or process.passed == root_passed, f"{number} has {process.passed} cuts and the root {root_passed}"
        return process._replace(
            at="F",
            generation=generation,
            members=members,
            sync=sync,
            base=base,
            root_passed=root_passed,
            arrivals=1,
            cuts=(),
            seen=0,
            orderly=False,
        )
    if message[0] == "lost":  # a worker that has finished has been ready
        return ready(number, process) if message[1] == process.generation and process.at in "FYRC" else process
    if message[0] == "update":
        return process._replace(seen=max(process.seen, message[1]))
    return process._replace(at="X", inbox=())


def ready(number: int, process: Process, orderly: bool = False) -> Process:
    event = m.Ready(number, process.generation, process.state, orderly)
    return process._replace(at="W", orderly=orderly, outbox=(*process.outbox, event))


def arrived(situation: Situation, process: Process, point: int) -> bool:
    others = [situation.processes[number] for number in process.members]
    return all(other.generation == process.generation and other.arrivals >= point for other in others)


def broken(situation: Situation, number: int, process: Process) -> bool:
    """Whether a collective fails. A member that has not come yet is not lost: it must be dead, frozen or gone."""
    for other_number in process.members:
        other = situation.processes[other_number]
        if other_number == number:
            continue
        if other.at in "XZ" or other.frozen or other.generation > process.generation:
            return True
        if other.generation == process.generation and other.at in "WD":
            left_behind_it = other.arrivals >= process.arrivals and (other.orderly or other.at == "D")
            if not left_behind_it:
                return True
    return False


def works(situation: Situation, number: int, process: Process, config: Config) -> Moves:
    """One step of a worker that runs."""
    at = process.at
    if at == "S":
        yield f"{number} is ready", changed(situation, number, ready(number, process))
    elif at == "F" and arrived(situation, process, 1):
        formed = process._replace(at="Y" if process.sync else "R", arrivals=2)
        yield f"{number} has formed", changed(situation, number, formed)
    elif at == "Y" and arrived(situation, process, 2):
        if all(situation.processes[other].sync for other in process.members):
            yield f"{number} is synced", changed(situation, number, synced(number, process, config))
    elif at == "R" and process.passed >= config.cuts:
        event = m.Finished(number, process.generation, process.state)
        finished = process._replace(at="D", outbox=(*process.outbox, event))
        yield f"{number} finishes", changed(situation, number, finished)
    elif at == "R":
        yield f"{number} arrives at a cut", changed(situation, number, arrives(process))
    elif at == "C" and arrived(situation, process, 2 + len(process.cuts)):
        index = len(process.cuts) - 1
        agreed = max(situation.processes[other].cuts[index] for other in process.members)
        done = process._replace(at="R")
        yield (
            f"{number} passes a cut, update {agreed}",
            changed(situation, number, ready(number, done, orderly=True) if agreed else done),
        )
    # While it forms, no engine runs yet, and only the driver can tell.
    if at in "YCD" and broken(situation, number, process):
        yield f"{number} notices a loss", changed(situation, number, ready(number, process))


def arrives(process: Process) -> Process:
    """A commit copies the state first, and then agrees: who has copied it holds this cut, whoever else comes."""
    cuts = (*process.cuts, process.seen)
    state = (process.generation, len(cuts))
    return process._replace(at="C", arrivals=2 + len(cuts), cuts=cuts, passed=process.passed + 1, state=state)


def synced(number: int, process: Process, config: Config) -> Process:
    in_order = set(config.events) <= {"add", "remove"}
    assert process.passed in (-1, process.root_passed) or not in_order, f"{number} is rolled back, though in order"
    assert process.root_passed >= process.passed, (
        f"the sync takes {number} back from {process.passed} to {process.root_passed}"
    )
    return process._replace(at="R", passed=max(process.root_passed, 0), state=process.base)


def outside(situation: Situation, config: Config) -> Moves:
    """Events that the configuration has."""
    for kind in sorted(set(situation.events)):
        index = situation.events.index(kind)
        fewer = situation._replace(events=situation.events[:index] + situation.events[index + 1 :])
        if kind in ("crash", "freeze", "blip"):
            for number, process in enumerate(situation.processes):
                if process.at not in "XZ" and not process.frozen and not (kind == "blip" and process.at == "S"):
                    yield f"{kind} of {number}", changed(fewer, number, hurt(kind, number, process))
        elif situation.job.phase != OVER:
            for place, (host, _, most) in enumerate(config.hosts):
                count = situation.slots[place] + (1 if kind == "add" else -1)
                if 0 <= count <= most:
                    slots = (*situation.slots[:place], count, *situation.slots[place + 1 :])
                    found = fewer._replace(slots=slots)
                    yield f"{kind} on {host}", drive(found, m.Listed(listing(config, slots)), config)


def hurt(kind: str, number: int, process: Process) -> Process:
    if kind == "crash":
        return process._replace(at="X", inbox=())
    if kind == "freeze":
        return process._replace(frozen=True)
    generation, state = process.generation, process.state
    again: m.Event = m.Attached(number, generation)
    if process.at == "W":
        again = m.Ready(number, generation, state, process.orderly)
    elif process.at == "D":
        again = m.Finished(number, generation, state)
    return process._replace(inbox=(), outbox=(again,))


def times_out(situation: Situation, config: Config) -> Moves:
    """The driver's timers, those of the agents, and the end of a time for which a place was blacklisted."""
    job, processes = situation.job, situation.processes
    wait = waits(job, config.rules)
    assert wait is not None or job.phase != GATHER, "nobody bounds this wait"
    if wait is not None and wait.timer is not None:
        late = [processes[worker.number] for worker in missing(job)]
        frozen = any(process.frozen and process.at != "X" for process in late)
        # Who starts, or has to come to its end, does so; one that is frozen there is killed by its agent.
        if wait.timer in (m.Timer.SETTLE, m.Timer.SLOTS) or (wait.timer == m.Timer.STRAGGLERS and frozen):
            yield f"timeout: {wait.text}", drive(situation, m.Timeout(wait.timer), config)
    if job.phase != OVER and config.rules.cooldown:
        for place in sorted(job.blacklisted):
            yield f"{place} has cooled down", drive(situation, m.CooledDown(place), config)
    for number, process in enumerate(processes):
        watched = number in job.told or (job.phase != GATHER and number in job.members) or process.at == "S"
        if process.frozen and process.at not in "XZ" and watched:
            yield f"the agent kills {number}", changed(situation, number, process._replace(at="X", inbox=()))
