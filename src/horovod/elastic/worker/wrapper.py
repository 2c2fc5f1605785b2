# SPDX-License-Identifier: Apache-2.0
"""The wrapper around a user's training function, which goes on with it from one world to the next.

In a static job the state is synced, the function runs, and its errors are the script's.

In an elastic job a loss takes this worker back to what it has saved, and a change of the hosts, on which all ranks have
agreed, leaves everything as it is. Then it joins the next world; its record says whether to sync. A
HorovodInternalError counts as a loss wherever it is raised, also while syncing or in a reset callback. The loop ends
when the function has returned on all members, when this worker is told to stop, or by an error of the script's.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

from horovod.core.exceptions import (
    DeadlockError,
    DeviceLostError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    MismatchError,
    PeerRefusedError,
    RankLostError,
    text_of,
)
from horovod.elastic.messages import NO_STATE, WorldRecord
from horovod.elastic.state.state import State, settle_gpus
from horovod.elastic.worker import link as _link  # noqa: F401  what init does in an elastic job
from horovod.elastic.worker import session as sessions
from horovod.elastic.worker.notices import notification_manager
from horovod.elastic.worker.session import Session

__all__ = ["run_fn"]

_log = logging.getLogger("horovod")


def run_fn(func: Callable[..., Any], reset: Callable[[], Any]) -> Callable[..., Any]:
    """`func(state, ...)` that survives changes of the job. It starts from its top in every world.

    reset: unused, for Horovod's callers: the session leaves a world and enters the next one.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        session = sessions.current()
        if session is not None and session.is_done:
            warnings.warn(
                "the elastic training of this job has ended: what runs now is not elastic, and the loss of a worker "
                "ends it\nhint: an elastic job calls one function that is decorated with run, and calls it once",
                stacklevel=2,
            )
        if session is None or session.is_done:
            state.sync()
            return func(state, *args, **kwargs)
        try:
            return _train(session, state, lambda: func(state, *args, **kwargs))
        except Exception as error:
            session.raised(error)
            raise

    return wrapper


def _train(session: Session, state: State, func: Callable[[], Any]) -> Any:
    world = session.world or session.join(orderly=False)
    # Also in a worker that joins, as in all others: a callback may call operations.
    is_another = world.generation > 1
    known: set[int] = set()  # members of the last world in which there was training
    while True:
        orderly, why, rank = False, "", session.place[0]
        with session.telling(lambda number, flags: _tell(state, number, flags)):
            try:
                if is_another:
                    state.on_reset()
                if world.sync:
                    _sync(session, state, world, known)
                known = _numbers(world)
                result = func()
                settle_gpus()
                if session.finish():
                    return result
                state.restore()
            except HorovodInternalError as error:
                if isinstance(error, (MismatchError, DeadlockError)) and not isinstance(error, PeerRefusedError):
                    raise  # no rank is lost: the ranks' calls differ, and would differ again
                if isinstance(error, DeviceLostError) and error.failed_rank == rank:
                    raise  # this process cannot use the GPU any more; another one may
                why = sessions.reason_of(error)  # not the error itself: it holds the function's frames
                state.restore()
            except HostsUpdatedInterrupt:
                orderly = True
        state.forget_updates()  # of that world; of the next one nothing has been told yet
        world = session.join(orderly, why)
        is_another = True


def _sync(session: Session, state: State, world: WorldRecord, known: set[int]) -> None:
    try:
        state.sync()
    except MismatchError as error:
        new = sorted(_numbers(world) - known)
        if session.held == NO_STATE or not new:
            raise
        # The others have done this before. So it is for those that are new to end, and for the others to go on.
        joiners = f"worker {new[0]}" if len(new) == 1 else f"one of the workers {', '.join(map(str, new))}"
        text = f"{joiners} cannot join, for its state differs: {text_of(error)}"
        _log.warning("horovod: warning: %s", text)
        raise RankLostError(text) from error
    if not getattr(type(state).sync, "saves", False):
        settle_gpus()
        state.save()  # training goes on from here, whichever worker is lost next
    session.held = world.base


def _tell(state: State, number: int, flags: int) -> None:
    state.on_hosts_updated(number, flags)
    notification_manager.tell(number, flags)


def _numbers(world: WorldRecord) -> set[int]:
    return {member.number for member in world.members}
