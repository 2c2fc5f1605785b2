# SPDX-License-Identifier: Apache-2.0
"""The state of an elastic job's driver (membership.py), and what can be asked of it. Pure."""

from __future__ import annotations

import collections
import itertools
from typing import NamedTuple

from horovod.core.wording import counted
from horovod.elastic.messages import ADDED, NO_STATE, REMOVED, Place, StateId, Timer, Worker, WorldRecord

__all__ = [
    "BLAME_HOST",
    "BLAME_WORKER",
    "GATHER",
    "LIVE",
    "NO_HOST_LEFT",
    "NO_WORLD",
    "OVER",
    "RESET_LIMIT",
    "SCRIPT",
    "STATE_LOST",
    "SUCCESS",
    "TOO_FEW_SLOTS",
    "JobState",
    "Rules",
    "Waits",
    "all_have_failed",
    "because",
    "holds_state",
    "is_full",
    "missing",
    "names",
    "needed",
    "one_apart",
    "raised_with_state",
    "reasons",
    "unfinished",
    "usual_reason",
    "waits",
]

LIVE, GATHER, OVER = "live", "gather", "over"

# How a job ends; all but the first are codes of errors (launcher/options/explanations/elastic.py).
SUCCESS = "success"
STATE_LOST = "elastic-state-lost"
TOO_FEW_SLOTS = "elastic-too-few-slots"
NO_HOST_LEFT = "elastic-no-host-left"
RESET_LIMIT = "elastic-reset-limit"
SCRIPT = "elastic-script"
NO_WORLD = "elastic-no-world"

_SHOWN_REASONS = 4

BLAME_HOST, BLAME_WORKER = "host", "worker"


class Rules(NamedTuple):
    """The rules that the job was started with.

    `spares`: how many workers beyond `max_np`, which must be given then, wait in reserve. `blame`: what is not used
    again after a failure, the whole host or the worker's slot. `cooldown`: failed hosts come back after a time.
    `restart`: the job starts over when no worker holds the state any more. `settle`: a joiner that is ready waits for
    others.
    """

    np: int
    min_np: int
    max_np: int | None = None
    spares: int = 0
    reset_limit: int | None = None
    blame: str = BLAME_HOST
    cooldown: bool = False
    restart: bool = False
    settle: bool = False


class JobState(NamedTuple):
    """The driver's state. Workers are numbers, except in `workers`."""

    phase: str = GATHER
    generation: int = 0
    # The newest world. `fresh`: the next one begins without a state, so no worker need hold one.
    record: WorldRecord | None = None
    members: frozenset[int] = frozenset()
    fresh: bool = True
    finished: frozenset[int] = frozenset()  # members whose function has returned
    left: frozenset[int] = frozenset()  # of these, those whose processes are gone
    lost: bool = False  # broken by a loss, not left in order
    calm: bool = True  # since it began no process has ended, and the hosts are the same
    fruitless: int = 0  # worlds in a row that broke in such a calm, and before a cut
    # (generation, worker, other one): in these worlds and the newest, one of the two could not connect to the other.
    unreached: frozenset[tuple[int, int, int]] = frozenset()
    apart: frozenset[int] = frozenset()  # workers that are ended for that reason
    announced: int = 0  # flags of the updates that its members have been told of
    settling: bool = False  # joiners are ready, and the members have not been told yet
    updates: int = 0
    # The processes: started, and not yet seen to end. `told`: to stop. `waiting`: who wants a world, with its state.
    workers: tuple[Worker, ...] = ()
    started: int = 0
    told: frozenset[int] = frozenset()
    waiting: tuple[tuple[int, StateId], ...] = ()
    come: frozenset[int] = frozenset()  # have been ready at least once
    # The hosts that discovery lists with their slots, oldest first, and the places there that may be used.
    hosts: tuple[tuple[str, int], ...] = ()
    listed: frozenset[Place] = frozenset()
    blacklisted: frozenset[Place] = frozenset()
    failures: tuple[tuple[str, tuple[float, ...]], ...] = ()  # by host, when its workers have failed
    raised: tuple[tuple[int, StateId, str], ...] = ()  # (worker, state, error) of scripts
    # For people; nothing is decided by these.
    reasons: tuple[str, ...] = ()  # of the next generation
    was_ready: bool = False  # any worker has been, also one that has ended
    outcome: str = ""


class Waits(NamedTuple):
    """A wait of the driver, and the timer that ends it, None if something else does.

    A timer runs on as long as `timer` and the generation stay the same.
    """

    text: str
    timer: Timer | None


def needed(job: JobState, rules: Rules) -> int:
    """How many workers the next world has at least."""
    return rules.min_np if job.generation else rules.np


def holds_state(job: JobState, number: int) -> bool:
    """It holds a cut; or its world began without one, and so none can have passed that it has no part in."""
    held = dict(job.waiting).get(number, NO_STATE)
    return held != NO_STATE or (job.record is not None and number in job.members and job.record.base[1] == 0)


def is_full(job: JobState, rules: Rules) -> bool:
    """True if the newest world has all the workers that it may have: others that are ready wait in reserve."""
    staying = sum(worker.number in job.members and worker.place in job.listed for worker in job.workers)
    return rules.max_np is not None and staying >= rules.max_np


def one_apart(job: JobState) -> tuple[int, int] | None:
    """The worker to end, and one that it cannot reach; None unless a pair has failed to connect twice.

    The one in more such pairs is ended, else the younger one, never the last that holds the state.
    """
    times = collections.Counter((first, second) for _, first, second in job.unreached)
    pairs = [pair for pair, count in times.items() if count > 1 and job.members.issuperset(pair)]
    if not pairs:
        return None
    troubles = collections.Counter(itertools.chain(*pairs))
    holders = [one for one in job.members if holds_state(job, one)]
    number = max(troubles, key=lambda one: (holders != [one], troubles[one], one))
    return number, next(one for pair in pairs if number in pair for one in pair if one != number)


def raised_with_state(job: JobState) -> tuple[tuple[int, StateId, str], ...]:
    """The errors of workers that held a state. After a cut, which shows that the job is well, only these count."""
    return tuple(item for item in job.raised if item[1] != NO_STATE)


def missing(job: JobState) -> list[Worker]:
    """Members of the last world that live and are neither ready nor finished."""
    held = dict(job.waiting)
    return [
        worker
        for worker in job.workers
        if worker.number in job.members and worker.number not in held and worker.number not in job.told
    ]


def unfinished(job: JobState) -> list[Worker]:
    """Members of the world that runs whose function has not returned."""
    return [one for one in job.workers if one.number in job.members and one.number not in job.finished]


def waits(job: JobState, rules: Rules) -> Waits | None:
    """The wait that the driver is in, or None."""
    if job.phase == LIVE:
        return _waits_of_live(job)
    if job.phase != GATHER:
        return None
    late = missing(job)
    if late:
        alone = "" if any(holds_state(job, number) for number, _ in job.waiting) else "; no other worker has the state"
        return Waits(f"workers of generation {job.generation}: {names(late)}{alone}", Timer.STRAGGLERS)
    least, slots = needed(job, rules), len(job.listed)
    if slots < least:
        flag = "--min-np" if job.generation else "-np"
        lacking = counted(least - slots, "more slot")
        return Waits(f"{lacking}: {slots} can be used, {least} needed ({flag})", Timer.SLOTS)
    held = dict(job.waiting)
    coming = [worker for worker in job.workers if worker.number not in held]
    # The first world has all workers that were started, and the driver ends those that take too long.
    return Waits(f"workers that start or end: {names(coming)}", Timer.STARTS if job.generation else None)


def _waits_of_live(job: JobState) -> Waits | None:
    # A joiner that has gone again does not interrupt the members.
    if job.settling and any(number not in job.members for number, _ in job.waiting):
        return Waits("other workers that are about to be ready", Timer.SETTLE)
    if job.finished - job.left:
        rest = names(unfinished(job))
        done = names([worker for worker in job.workers if worker.number in job.finished])
        return Waits(f"the end of training in workers {rest}; it has ended in workers {done}", Timer.ENDS)
    if job.announced:
        return Waits("state.commit() or state.check_host_updates(): the hosts have changed", None)
    return None


def reasons(job: JobState) -> str:
    """The events since the last world began; if there are many, the last ones."""
    more = len(job.reasons) - _SHOWN_REASONS
    return " and ".join(job.reasons[-_SHOWN_REASONS:]) + (f" (and {more} more before)" if more > 0 else "")


def because(job: JobState) -> str:
    """That, as the end of a sentence."""
    return f": {reasons(job)}" if job.reasons else ""


def all_have_failed(job: JobState) -> str:
    """Why a job ends whose hosts have all failed."""
    hosts = ", ".join(host for host, _ in job.hosts)
    what = f"workers have failed on every host ({hosts})" if job.was_ready else "no worker has got to hvd.init()"
    return what + because(job)


def usual_reason(job: JobState) -> str:
    """Why there is a new generation, if no worker has ended."""
    if not job.generation:
        return "the job starts"
    if job.lost:
        return "a collective failed"
    changes = {
        ADDED: "workers are added",
        REMOVED: "slots were removed",
        ADDED | REMOVED: "slots were added and removed",
    }
    return changes.get(job.announced, "the workers left")


def names(workers: list[Worker]) -> str:
    """Workers with their hosts, for people."""
    return ", ".join(f"{worker.number} on {worker.host}" for worker in workers)
