# SPDX-License-Identifier: Apache-2.0
"""The words of elastic training: what happens (events), what is to be done (orders), and what a worker is told.

A *worker* is one process; its number is never used again. A *place* is a slot of a host. A *generation* is one world.
A *cut* is a call at which all ranks agree, so that their states are equal; a *state id* says which cut a worker's state
is of. A *joiner* is a worker that has been in no world yet.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

__all__ = [
    "ADDED",
    "NO_STATE",
    "REMOVED",
    "WHOLE_HOST",
    "AskStack",
    "Attached",
    "Ready",
    "Done",
    "End",
    "Ended",
    "Event",
    "Finished",
    "Kill",
    "Left",
    "Listed",
    "Lost",
    "Message",
    "Order",
    "CooledDown",
    "Place",
    "Raised",
    "Stack",
    "Start",
    "StateId",
    "Stop",
    "Tell",
    "Timeout",
    "Timer",
    "Update",
    "Blacklist",
    "Worker",
    "WorldRecord",
]

# (host, slot). WHOLE_HOST in place of a slot: all of them.
Place = tuple[str, int]
WHOLE_HOST = -1

# (generation, number of the cut in it). Cut 0 is the state that a world began with, if no worker had one.
StateId = tuple[int, int]
NO_STATE: StateId = (0, 0)

# Changes of the hosts, added up: the values of Horovod's HostUpdateResult.
REMOVED, ADDED = 1, 2


class Worker(NamedTuple):
    number: int
    host: str
    slot: int

    @property
    def place(self) -> Place:
        return self.host, self.slot


# Messages to a worker.


@dataclasses.dataclass(frozen=True)
class WorldRecord:
    """The record of a generation, written once. `members`: workers by rank. `base`: the state that it begins with.

    `sync`: whether the members must get that state from rank 0. If not, all of them hold it.
    """

    generation: int
    members: tuple[Worker, ...]
    sync: bool
    base: StateId
    reason: str


@dataclasses.dataclass(frozen=True)
class Lost:
    """This world is dead: leave it, and be ready for the next one."""

    generation: int


@dataclasses.dataclass(frozen=True)
class Update:
    """The hosts have changed: agree on it at the next cut, then leave and be ready."""

    number: int
    flags: int


@dataclasses.dataclass(frozen=True)
class Stop:
    """You are in no later world."""


@dataclasses.dataclass(frozen=True)
class Done:
    """All members have finished."""


@dataclasses.dataclass(frozen=True)
class AskStack:
    """The others have waited for this worker for long: say where its script is."""


Message = WorldRecord | Lost | Update | Stop | Done | AskStack


# Events. Those of a worker carry the generation that it has been in last (0: none) and the id of its state.


@dataclasses.dataclass(frozen=True)
class Ready:
    """A worker is in no world and asks for one. `orderly`: it left after a cut at which all agreed to leave.

    `unreached`: members of its last world that it could not connect to. `why`: what it noticed, for people, if that was
    not the end of another worker.
    """

    worker: int
    left: int
    state: StateId
    orderly: bool = False
    unreached: tuple[int, ...] = ()
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Finished:
    """The user's function has returned. The worker stays in its world until all members have said so."""

    worker: int
    left: int
    state: StateId


@dataclasses.dataclass(frozen=True)
class Attached:
    """A worker that is in a world has connected again."""

    worker: int
    generation: int


@dataclasses.dataclass(frozen=True)
class Raised:
    """The user's function has raised an exception, which ends the worker. `error`: its type and where."""

    worker: int
    state: StateId
    error: str


@dataclasses.dataclass(frozen=True)
class Stack:
    """Where a worker's script is, as text for people. No event: nothing follows from it."""

    worker: int
    text: str


@dataclasses.dataclass(frozen=True)
class Left:
    """A member's process is gone, with success. It has finished its share, unless the others have to meet again.

    If they have, the sender sends Ended, too; no world forms before that.
    """

    worker: int


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process is gone. `how` completes the sentence "worker 3 ..."; `at_s` is any clock that does not go back."""

    worker: int
    how: str
    at_s: float


@dataclasses.dataclass(frozen=True)
class Listed:
    """The hosts that discovery lists now, each with the number of its slots."""

    hosts: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class CooledDown:
    """A place that was blacklisted may be used again."""

    place: Place


class Timer(enum.Enum):
    """The waits that may take too long."""

    SETTLE = "settle"  # joiners that are ready wait for others
    STRAGGLERS = "stragglers"  # members of the last world do not come
    SLOTS = "slots"  # there are too few slots
    STARTS = "starts"  # there are enough, but too few workers in them are ready
    ENDS = "ends"  # some members have finished, and others do not


@dataclasses.dataclass(frozen=True)
class Timeout:
    """A timer that the driver asked for has run out."""

    timer: Timer


Event = Ready | Finished | Attached | Raised | Left | Ended | Listed | CooledDown | Timeout


# Orders.


@dataclasses.dataclass(frozen=True)
class Start:
    worker: Worker


@dataclasses.dataclass(frozen=True)
class Kill:
    """`why` completes "worker 3 ..."; empty: it did not come in time."""

    worker: int
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Tell:
    worker: int
    message: Message


@dataclasses.dataclass(frozen=True)
class Blacklist:
    """Send CooledDown when the place may be used again. `failures`: how often workers of its host have failed."""

    place: Place
    failures: int


@dataclasses.dataclass(frozen=True)
class End:
    """The job is over. `outcome` is a word of membership.py, `text` the sentence for people."""

    outcome: str
    text: str


Order = Start | Kill | Tell | Blacklist | End
