# SPDX-License-Identifier: Apache-2.0
"""The states that training continues from: users subclass State; ObjectState has values that are its attributes.

Three copies of a state matter. The *live* one is what the script trains. The *saved* one is a rank's own copy of it,
made by save(). restore() copies it back into the live one. sync() sends rank 0's live one to all ranks, which then save
it.

commit() and check_host_updates() are *cuts*: calls that all ranks make equally often, so that their states are equal
there. In them the ranks agree whether the hosts have changed, and all of them leave their world at the same call.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Iterable
from typing import Any

from horovod.core import context as contexts
from horovod.core.context import is_initialized, size
from horovod.core.exceptions import HostsUpdatedInterrupt, InvalidRequestError
from horovod.core.wording import quoted
from horovod.elastic.messages import ADDED, REMOVED
from horovod.elastic.worker import session as sessions

__all__ = ["ObjectState", "State", "saves", "settle_gpus"]

_FLAGS = ADDED | REMOVED
_AGREE = "commit() or check_host_updates()"  # the name under which a stall report speaks of ranks that wait at a cut


def saves(sync: Callable[[Any], None]) -> Callable[[Any], None]:
    """Marks a sync() that ends with save(). After any other one, the wrapper around the training saves."""
    sync.saves = True  # type: ignore[attr-defined]
    return sync


def settle_gpus() -> None:
    """Waits until this rank's GPU has done all that was launched, since a step that was aborted must not be saved.

    Raises HorovodInternalError if it has not ended well.
    """
    if is_initialized():
        contexts.current().settle()


class State:
    """A training state that survives the loss of workers. A subclass has save(), restore() and sync().

    bcast_object: a function that returns rank 0's object on every rank. get_rank: a function that returns the rank.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[int, int]] = queue.Queue()
        self._last_updated_timestamp = 0
        self._interrupt = (-1, 0, 0)  # the last one: its world, the update, and its flags
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Adds functions without arguments, which run after every change of the world, before sync().

        They are the place to adapt the learning rate or to make the data loader anew. They run in all workers, also in
        one that joins.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Runs reset() and the callbacks: the world is another one now."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Notes that the hosts have changed; the next cut acts on it. May be called from any thread.

        timestamp: grows with every change. update_res: 1 if hosts were removed, 2 if hosts were added, 3 for both.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, and raises HostsUpdatedInterrupt on all ranks if the hosts have changed.

        All ranks must call it equally often.
        """
        settle_gpus()
        self.save()
        session = sessions.current()
        if session is not None and session.world is not None:
            session.held = (session.world.generation, session.cuts + 1)
        self._cut(saved=True)

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if the hosts have changed.

        All ranks must call it equally often. It saves nothing unless it raises.
        """
        self._cut(saved=False)

    def save(self) -> None:
        """Copies the live state, for restore()."""
        raise NotImplementedError

    def restore(self) -> None:
        """Makes the live state what it was at the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapts the state to a new world, before the reset callbacks. Does nothing by default."""

    def forget_updates(self) -> None:
        """Forgets all notices: they are of a world that is over."""
        self._interrupt = (-1, 0, 0)
        while not self._host_messages.empty():
            self._host_messages.get_nowait()

    def _cut(self, saved: bool) -> None:
        session = sessions.current()
        generation = session.world.generation if session is not None and session.world is not None else 0
        # A script may catch the interrupt and go on: it comes again while the world is the same.
        newest, flags = self._interrupt[1:] if self._interrupt[0] == generation else (0, 0)
        while not self._host_messages.empty():
            timestamp, result = self._host_messages.get_nowait()
            if timestamp > self._last_updated_timestamp:
                newest, flags = max(newest, timestamp), flags | result
        newest, flags = divmod(_highest(newest * (_FLAGS + 1) + flags), _FLAGS + 1)
        interrupted = newest > 0
        if session is not None and session.world is not None:
            session.cuts += 1
            if interrupted and not saved:
                settle_gpus()
                self.save()  # training goes on from here, even if a worker is lost meanwhile
            # A commit of the user's own has saved, but has not said so.
            if interrupted or type(self).commit is not State.commit:
                session.held = (session.world.generation, session.cuts)
        if interrupted:
            self._last_updated_timestamp = newest
            self._interrupt = (generation, newest, flags)
            raise HostsUpdatedInterrupt(flags == REMOVED)


class ObjectState(State):
    """A state whose values are the keywords that it is given, and attributes: `state.epoch += 1`.

    They are copied deeply, and pickled on their way to other ranks. Names that begin with an underscore are not values.
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        self._saved_state: dict[str, Any] = kwargs
        for name, value in kwargs.items():
            if name.startswith("_") or callable(getattr(type(self), name, None)):
                why = "begins with an underscore" if name.startswith("_") else "is that of a method"
                raise InvalidRequestError(f"{type(self).__name__}: no value can be called {quoted(name)}, which {why}")
            setattr(self, name, value)
        super().__init__(bcast_object, get_rank)
        self._saved_state = self._copied(kwargs)

    def save(self) -> None:
        settle_gpus()
        self._saved_state = self._copied(self._values())

    def restore(self) -> None:
        self._set_values(self._copied(self._saved_state))

    @saves
    def sync(self) -> None:
        if self._saved_state:
            self._set_values(self._bcast_object(self._values()))
        self.save()

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _set_values(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:
        """A deep copy, made at once, so that values that share an object go on sharing it."""
        try:
            return copy.deepcopy(values)
        except Exception as error:
            # The values' own code runs. Which one it was is what the user has to know.
            name = next((name for name, value in values.items() if not _can_copy(value)), "")
            raise InvalidRequestError(
                f"{type(self).__name__}: {quoted(name)} cannot be copied ({type(error).__name__}: {error})\n"
                "hint: keep in the state what training continues from, and make the rest in a reset callback"
            ) from error


def _can_copy(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


def _highest(value: int) -> int:
    """The highest of the ranks' values. A single rank sends nothing."""
    if not is_initialized() or size() == 1:
        return value
    import numpy as np

    from horovod.core.arrays import operations
    from horovod.core.native import Max

    return int(operations.allreduce(np.array([value], np.int64), op=Max, name=_AGREE)[0])
