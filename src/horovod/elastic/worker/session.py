# SPDX-License-Identifier: Apache-2.0
"""The driver as a worker's state and the wrapper around its training see it: one session in a process.

Without a session the job is a static one: workers never join or leave it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from horovod.core.exceptions import RankLostError, named
from horovod.elastic.messages import StateId, WorldRecord

__all__ = ["Session", "Stopped", "begin", "current", "end", "is_loss", "reason_of"]


_REASON_CHARACTERS = 200


class Stopped(SystemExit):
    """This worker has been told to stop: nothing that it would still give is wanted."""


def is_loss(error: Exception) -> bool:
    """True if it says that another worker is gone, in the start or later: the next world has other members."""
    return isinstance(error, RankLostError) or getattr(error, "code", "") == "start-lost-rank"


def reason_of(error: Exception) -> str:
    """A line for people; empty for the loss of another worker, which the driver knows better."""
    return "" if is_loss(error) else named(error).splitlines()[0][:_REASON_CHARACTERS]


class Session(Protocol):
    """A worker's connection with the driver, and what it has to say of itself.

    `world`: that it is in; None until a joiner has got its first one. `place`: the rank and the size that scripts see.
    `cuts`: how many cuts the ranks have agreed on in this world. `held`: the id of the state that was saved last.

    State and the wrapper write `cuts` and `held`. All methods are for the thread that trains.
    """

    world: WorldRecord | None
    cuts: int
    held: StateId

    @property
    def place(self) -> tuple[int, int]:
        """The rank and the size, those that are planned for a joiner included."""
        ...

    @property
    def is_done(self) -> bool:
        """True if finish() has returned True: workers do not join or leave any more."""
        ...

    def join(self, orderly: bool, why: str = "") -> WorldRecord:
        """Leaves the world that this worker is in, if any, and blocks until it is in the next one.

        `orderly`: all ranks have agreed to leave. `why` it leaves otherwise (reason_of). Resets `cuts`. Raises
        Stopped if the worker is told to stop.
        """
        ...

    def finish(self) -> bool:
        """Says that the user's function has returned, and blocks. True: so it has on all members, and the job is done.

        False: a worker was lost meanwhile, so this one has to join the next world and do the rest of its share.
        """
        ...

    def raised(self, error: Exception) -> None:
        """Says what the user's function has raised; the worker is about to end."""
        ...

    def telling(self, heard: Callable[[int, int], None]) -> AbstractContextManager[None]:
        """While it is open, `heard(number, flags)` is called, on any thread, when the hosts have changed.

        Never for a world that the worker has left.
        """
        ...


_session: Session | None = None


def begin(session: Session) -> None:
    """This process is a worker of an elastic job from now on."""
    global _session
    _session = session


def end() -> None:
    """The job is a static one again."""
    global _session
    _session = None


def current() -> Session | None:
    """The session of this process, None in a static job."""
    return _session
