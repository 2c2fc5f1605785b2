# SPDX-License-Identifier: Apache-2.0
"""The membership of worlds: the driver of an elastic job as one pure function, from a state and an event to orders.

    job, orders = step(job, event, rules)

It reads no clock and opens nothing. The caller carries the orders out, and runs the timers that `waits` names.
Every event is legal in every phase. tests/unit/elastic/test_membership_model.py runs this file against all
interleavings of workers that crash, freeze, reconnect, leave and join.

LIVE: the newest world runs. GATHER: it is over, and its members are coming. OVER: so is the job. What keeps it right:

  Only this function makes generations. All members of one get the same record, which also says whether to sync.
  What a worker said before it read of the newest world never counts: it is told of that world again.
  A world forms only when every member of the last one has come or is known to be gone.
  A joiner does not disturb the others before it is ready; they then leave their world together, at a cut, in order.
  All continue from the newest state that any of them holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.elastic.decide.job import (
    BLAME_HOST,
    GATHER,
    LIVE,
    NO_HOST_LEFT,
    NO_WORLD,
    OVER,
    RESET_LIMIT,
    SCRIPT,
    STATE_LOST,
    SUCCESS,
    TOO_FEW_SLOTS,
    JobState,
    Rules,
    all_have_failed,
    because,
    holds_state,
    is_full,
    missing,
    names,
    needed,
    one_apart,
    raised_with_state,
    reasons,
    usual_reason,
    waits,
)
from horovod.elastic.decide.ranks import in_rank_order
from horovod.elastic.decide.turn import Turn
from horovod.elastic.messages import (
    ADDED,
    NO_STATE,
    REMOVED,
    WHOLE_HOST,
    Attached,
    Blacklist,
    CooledDown,
    Done,
    End,
    Ended,
    Event,
    Finished,
    Kill,
    Left,
    Listed,
    Lost,
    Order,
    Raised,
    Ready,
    Start,
    StateId,
    Stop,
    Timeout,
    Timer,
    Update,
    Worker,
    WorldRecord,
)

__all__ = ["begin", "step"]

# With BLAME_WORKER, this many failures in this time make it the host's fault.
_FAILURES, _WITHIN_S = 3, 300.0
_KEPT_FAILURES = 16  # a cooldown no longer grows after so many
_MOST_FRUITLESS = 3  # so many worlds in a row that break by themselves: the next one would, too


def begin(hosts: tuple[tuple[str, int], ...], rules: Rules) -> tuple[JobState, tuple[Order, ...]]:
    """A job with these hosts, and the orders to start its workers."""
    return step(JobState(), Listed(hosts), rules)


def step(job: JobState, event: Event, rules: Rules) -> tuple[JobState, tuple[Order, ...]]:
    """Applies an event to the job. Returns the new state, and the orders in the sequence to carry them out."""
    turn = Turn(job, rules)
    _HANDLERS[type(event)](turn, event)
    if turn.job.phase == GATHER:
        _form(turn)
    return turn.job, tuple(turn.orders)


# Words of workers


def _answered(turn: Turn, event: Ready | Finished | Attached) -> bool:
    """Answers a late event, or a worker that may have missed a message. True if the event needs no more than that."""
    job, number = turn.job, event.worker
    if all(worker.number != number for worker in job.workers):
        return True  # its end was seen already
    if number in job.told:
        turn.tell(number, Done() if job.outcome == SUCCESS and number in job.finished else Stop())
        return True
    said_of = event.generation if isinstance(event, Attached) else event.left
    if job.record and number in job.members and (isinstance(event, Attached) or said_of < job.generation):
        turn.tell(number, job.record)
        if job.lost:
            turn.tell(number, Lost(job.generation))
        elif job.announced:
            turn.tell(number, Update(job.updates, job.announced))
        return True
    return isinstance(event, Attached)


def _ready(turn: Turn, event: Ready) -> None:
    turn.set(was_ready=True)
    if _answered(turn, event):
        return
    _wait(turn, event)
    job = turn.job
    if event.worker in job.members:
        pairs = [sorted((event.worker, other)) for other in event.unreached if other in job.members]
        turn.set(unreached=job.unreached | {(job.generation, first, second) for first, second in pairs})
        if event.why and not any(" reports " in reason for reason in job.reasons):
            turn.set(reasons=(*job.reasons, f"worker {event.worker} reports {event.why}"))
        turn.leave_world(event.orderly)
    elif turn.job.phase == LIVE and not is_full(turn.job, turn.rules):
        if turn.rules.settle:
            turn.set(settling=True)
        else:
            turn.announce(ADDED)


def _finished(turn: Turn, event: Finished) -> None:
    if _answered(turn, event):
        return
    _wait(turn, event)
    turn.set(finished=turn.job.finished | {event.worker})
    _end_if_all_have_finished(turn)


def _end_if_all_have_finished(turn: Turn) -> None:
    if turn.job.phase == LIVE and turn.job.finished == turn.job.members:
        _finish(turn, SUCCESS, "all workers have finished")


def _attached(turn: Turn, event: Attached) -> None:
    _answered(turn, event)


def _raised(turn: Turn, event: Raised) -> None:
    """The same exception in two workers at the same cut is the script's, or a sample's: it would come again.

    A worker without a state has been at no place of the training, unless its whole world began without one. For those
    that join, three equal failures count instead.
    """
    job = turn.job
    if all(worker.number != event.worker for worker in job.workers):
        return
    began_without = job.record is not None and event.worker in job.members and job.record.base == (job.generation, 0)
    joined = event.state == NO_STATE and not began_without
    before = [other for other, state, error in job.raised if (state, error) == (event.state, event.error)]
    turn.set(raised=(*job.raised[-_KEPT_FAILURES:], (event.worker, event.state, event.error)))
    alike = list(dict.fromkeys([*before, event.worker]))
    if job.phase != OVER and len(alike) >= (_FAILURES if joined else 2):
        who = f"workers {', '.join(map(str, alike[:-1]))} and {alike[-1]}"
        where = "when they joined" if joined else "at the same place of the training"
        _finish(turn, SCRIPT, f"{who} raised the same exception {where}: {event.error}")


def _wait(turn: Turn, event: Ready | Finished) -> None:
    waiting = {**dict(turn.job.waiting), event.worker: event.state}
    turn.set(waiting=tuple(sorted(waiting.items())), come=turn.job.come | {event.worker})


# Ends of processes, and changes of hosts


def _left(turn: Turn, event: Left) -> None:
    """It waits for no world, so none forms before its end has been seen."""
    job, number = turn.job, event.worker
    if job.phase == LIVE and number in job.members:
        waiting = tuple(item for item in job.waiting if item[0] != number)
        turn.set(finished=job.finished | {number}, left=job.left | {number}, waiting=waiting)
        _end_if_all_have_finished(turn)


def _ended(turn: Turn, event: Ended) -> None:
    job, number = turn.job, event.worker
    worker = next((worker for worker in job.workers if worker.number == number), None)
    if worker is None:
        return
    turn.set(
        workers=tuple(other for other in job.workers if other.number != number),
        waiting=tuple(item for item in job.waiting if item[0] != number),
        told=job.told - {number},
        come=job.come - {number},
        left=job.left - {number},
        calm=False,
    )
    if job.phase == OVER:
        return
    if number not in job.told:
        turn.set(reasons=(*job.reasons, f"worker {number} on {worker.host} {event.how}"))
        _blame(turn, worker, event.at_s, started=number in job.come or number in job.members)
    if number in job.members:
        turn.leave_world(orderly=False)
    if job.generation and not job.fresh and not any(worker.number in job.members for worker in turn.job.workers):
        _lose_state(turn)
    _use_places(turn)


def _blame(turn: Turn, worker: Worker, at_s: float, started: bool) -> None:
    """Blacklists the place of a failed worker, or its whole host, unless discovery has dropped the place."""
    job, host = turn.job, worker.host
    if worker.place not in job.listed:
        return
    failures = dict(job.failures)
    failures[host] = (*failures.get(host, ())[-_KEPT_FAILURES:], at_s)
    turn.set(failures=tuple(sorted(failures.items())))
    recent = [when for when in failures[host] if when > at_s - _WITHIN_S]
    whole = turn.rules.blame == BLAME_HOST or not started or len(recent) >= _FAILURES or worker.number in job.apart
    # The last host is kept while a worker on it goes on: otherwise the job would end.
    others_listed = any(place[0] != host for place in job.listed)
    others_live = any(other.host == host and other.number not in turn.job.told for other in turn.job.workers)
    place = (host, WHOLE_HOST if whole and (others_listed or not others_live) else worker.slot)
    # A host's failures count as long as it is listed, those of a slot for a while.
    turn.orders.append(Blacklist(place, len(failures[host] if place[1] == WHOLE_HOST else recent)))
    turn.set(blacklisted=job.blacklisted | {place})


def _discovered(turn: Turn, event: Listed) -> None:
    """A host that is missing once and comes back is a new one: its age and its failures are forgotten."""
    job, now = turn.job, dict(event.hosts)
    if job.phase == OVER:
        return
    kept = [(host, now[host]) for host, _ in job.hosts if host in now]
    new = [item for item in event.hosts if item[0] not in dict(job.hosts)]
    turn.set(
        calm=job.calm and now == dict(job.hosts),
        hosts=(*kept, *new),
        blacklisted=frozenset(place for place in job.blacklisted if place[0] in now),
        failures=tuple(item for item in job.failures if item[0] in now),
    )
    _use_places(turn)


def _cooled_down(turn: Turn, event: CooledDown) -> None:
    if turn.job.phase != OVER:
        turn.set(blacklisted=turn.job.blacklisted - {event.place})
        _use_places(turn)


def _use_places(turn: Turn) -> None:
    """Follows what is listed: tells those on places that are not, and starts workers in empty ones."""
    job, blocked = turn.job, turn.job.blacklisted
    places = [(host, slot) for host, slots in job.hosts if (host, WHOLE_HOST) not in blocked for slot in range(slots)]
    listed = frozenset(places) - blocked
    gone = job.listed - listed
    turn.set(listed=listed)
    if job.phase == OVER:
        return
    for worker in job.workers:
        if worker.place in gone and worker.number not in job.members and worker.number not in job.told:
            turn.stop(worker.number)
        elif worker.place in gone and worker.number in job.members and job.phase == LIVE:
            turn.announce(REMOVED)
    all_failed = bool(job.hosts) and all((host, WHOLE_HOST) in blocked for host, _ in job.hosts)
    if all_failed and not turn.rules.cooldown and not any(worker.number in job.members for worker in job.workers):
        _finish(turn, NO_HOST_LEFT, all_have_failed(job))
        return
    if not job.started and len(listed) < turn.rules.np:
        return
    # Those in reserve start when the first world is there: the first workers may call operations before it.
    most = None if turn.rules.max_np is None else turn.rules.max_np + (turn.rules.spares if job.generation else 0)
    taken = {worker.place for worker in job.workers}
    useful = sum(worker.number not in turn.job.told and worker.place in listed for worker in job.workers)
    for place in places:
        if place in listed and place not in taken and (most is None or useful < most):
            worker = Worker(turn.job.started, *place)
            turn.orders.append(Start(worker))
            turn.set(workers=(*turn.job.workers, worker), started=worker.number + 1)
            useful += 1


# Worlds


def _chosen(turn: Turn, held: dict[int, StateId]) -> list[Worker]:
    """The members of the next world, [] if it cannot form yet or the state is lost."""
    job = turn.job
    waiting = [worker for worker in job.workers if worker.number in held]
    members = [worker for worker in waiting if worker.place in job.listed]
    if not job.fresh and not any(holds_state(job, worker.number) for worker in members):
        donors = [worker for worker in waiting if holds_state(job, worker.number)]
        if not donors:
            _lose_state(turn)
            if turn.job.phase == OVER:
                return []
            job = turn.job  # those that wait form the next world
        elif not members:
            return []  # it would only give the state to itself
        else:
            # Its place is gone, but no other worker has the state: it stays until the next cut.
            members.append(max(donors, key=lambda worker: (held[worker.number], -worker.number)))
    if len(members) < needed(job, turn.rules):
        return []
    if not job.generation and {worker.number for worker in job.workers} - job.told - set(held):
        return []  # the first world is that of all that were started
    members.sort(key=lambda worker: (not holds_state(job, worker.number), worker.number))
    return members[: turn.rules.max_np]


def _form(turn: Turn) -> None:
    """Makes the next world, once every member of the last one is accounted for and there are enough."""
    if missing(turn.job):
        return
    held = dict(turn.job.waiting)
    members = _chosen(turn, held)
    job, rules = turn.job, turn.rules
    if not members or job.phase == OVER:
        return
    if rules.reset_limit is not None and job.generation > rules.reset_limit:
        text = f"the workers changed more often than --reset-limit {rules.reset_limit} allows{because(job)}"
        _finish(turn, RESET_LIMIT, text)
        return
    for worker in job.workers:
        if worker.number in held and worker.place not in job.listed and worker not in members:
            turn.stop(worker.number)
    root = max(members, key=lambda worker: (held[worker.number], -worker.number)).number
    states = {held[worker.number] for worker in members}
    numbers = frozenset(worker.number for worker in members)
    fruitless = job.fruitless + 1 if _broke_by_itself(job, held[root]) else 0
    if fruitless and _end_one_that_is_apart(turn, members):
        return
    if fruitless == _MOST_FRUITLESS:
        text = f"{fruitless} worlds in a row broke before a commit, though no worker ended and no host changed"
        _finish(turn, NO_WORLD, text + because(job))
        return
    generation = job.generation + 1
    record = WorldRecord(
        generation,
        in_rank_order(members, root, [host for host, _ in job.hosts]),
        # After a loss, a state may have been copied without a cut, so its id does not vouch for it.
        sync=job.lost or len(states) > 1 or NO_STATE in states,
        base=(generation, 0) if held[root] == NO_STATE else held[root],
        reason=reasons(job) or usual_reason(job),
    )
    turn.set(
        phase=LIVE,
        generation=generation,
        record=record,
        members=numbers,
        fresh=False,
        finished=frozenset(),
        left=frozenset(),
        lost=False,
        calm=True,
        fruitless=fruitless,
        unreached=job.unreached if fruitless else frozenset(),
        raised=raised_with_state(job) if job.record and held[root] > job.record.base else job.raised,
        announced=0,
        settling=False,
        waiting=tuple(item for item in turn.job.waiting if item[0] not in numbers),
        reasons=(),
    )
    for worker in members:
        turn.tell(worker.number, record)
    if any(worker.place not in job.listed for worker in members):
        turn.announce(REMOVED)
    if rules.spares:
        _use_places(turn)


def _broke_by_itself(job: JobState, newest: StateId) -> bool:
    """True if the last world was lost before any worker had a cut of it, and nothing from outside explains that."""
    return job.lost and job.calm and job.record is not None and newest <= job.record.base


def _end_one_that_is_apart(turn: Turn, members: list[Worker]) -> bool:
    """Ends it, and says whether there was one. The next world waits for its end. Not if too few were left, for good."""
    job, found = turn.job, one_apart(turn.job)
    if found is None:
        return False
    number, other = found
    host = next(worker.host for worker in job.workers if worker.number == number)
    rest = sum(worker.host != host for worker in members)
    if rest < needed(job, turn.rules) and not turn.rules.cooldown:
        return False
    both = f"it and worker {names([worker for worker in job.workers if worker.number == other])}"
    turn.orders.append(Kill(number, f"was ended: {both} cannot connect to each other; look for a firewall"))
    waiting = tuple(item for item in job.waiting if item[0] != number)
    turn.set(apart=job.apart | {number}, waiting=waiting, unreached=frozenset())
    return True


# Ends and timers


def _lose_state(turn: Turn) -> None:
    if not turn.rules.restart:
        what = "every worker that held the state has ended" if turn.job.generation > 1 else "all workers have ended"
        _finish(turn, STATE_LOST, what + because(turn.job))
        return
    turn.set(phase=GATHER, members=frozenset(), fresh=True, finished=frozenset(), left=frozenset(), lost=False)
    turn.set(announced=0, settling=False, reasons=(*turn.job.reasons, "no worker holds the state: all start over"))


def _finish(turn: Turn, outcome: str, text: str) -> None:
    job = turn.job
    for worker in job.workers:
        if worker.number not in job.told:
            turn.tell(worker.number, Done() if outcome == SUCCESS and worker.number in job.finished else Stop())
    told = frozenset(worker.number for worker in job.workers)
    turn.set(phase=OVER, outcome=outcome, waiting=(), told=told, settling=False)
    turn.orders.append(End(outcome, text))


def _late(turn: Turn, event: Timeout) -> None:
    """A timer has run out; it counts only if the driver still waits for that."""
    job, wait = turn.job, waits(turn.job, turn.rules)
    if wait is None or wait.timer != event.timer:
        return
    if event.timer == Timer.SETTLE:
        turn.set(settling=False)
        turn.announce(ADDED)
    elif event.timer == Timer.STRAGGLERS:
        # Their ends are awaited before the next world forms: no worker may be left that believes in the last one.
        turn.orders.extend(Kill(worker.number) for worker in missing(job))
    elif event.timer == Timer.ENDS:
        rule = "all ranks must make the same number of steps and commits"
        _finish(turn, SCRIPT, f"it waited too long for {wait.text}: {rule}")
    else:
        _finish(turn, TOO_FEW_SLOTS, f"it waited too long for {wait.text}")


_HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    Ready: _ready,
    Finished: _finished,
    Attached: _attached,
    Raised: _raised,
    Left: _left,
    Ended: _ended,
    Listed: _discovered,
    CooledDown: _cooled_down,
    Timeout: _late,
}
