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
from collections.abc import Callable
from typing import Any

from horovod.core.exceptions import HorovodInternalError, HostsUpdatedInterrupt, MismatchError, PeerRefusedError
from horovod.elastic import link as _link  # noqa: F401  what init does in an elastic job
from horovod.elastic import session as sessions
from horovod.elastic.session import Session
from horovod.elastic.state import State

__all__ = ["run_fn"]


def run_fn(func: Callable[..., Any], reset: Callable[[], Any]) -> Callable[..., Any]:
    """`func(state, ...)` that survives changes of the job. It starts from its top in every world.

    reset: unused, for Horovod's callers: the session leaves a world and enters the next one.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        session = sessions.current()
        if session is None:
            state.sync()
            return func(state, *args, **kwargs)
        with session.telling(state.on_hosts_updated):
            try:
                return _train(session, state, lambda: func(state, *args, **kwargs))
            except Exception as error:
                session.raised(error)
                raise

    return wrapper


def _train(session: Session, state: State, func: Callable[[], Any]) -> Any:
    place = session.place
    world = session.world or session.join(orderly=False)
    # A script may have used the rank and the size that were planned for a joiner.
    is_another = session.place != place
    while True:
        orderly = False
        try:
            if is_another:
                state.on_reset()
            if world.sync:
                state.sync()
                session.held = world.base
            result = func()
            if session.finish():
                return result
            state.restore()
        except HorovodInternalError as error:
            if isinstance(error, MismatchError) and not isinstance(error, PeerRefusedError):
                raise  # nobody is lost: the ranks' calls differ, and would differ again
            state.restore()
        except HostsUpdatedInterrupt:
            orderly = True
        state.forget_updates()
        world = session.join(orderly)
        is_another = True
