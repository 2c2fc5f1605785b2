# SPDX-License-Identifier: Apache-2.0
"""States whose values are changed in place, such as models: a handler for each saves, restores and syncs it.

The script keeps its objects. What has no handler is a plain value, which is replaced (elastic/state/state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from horovod.elastic.state.state import ObjectState, saves, settle_gpus

__all__ = ["HandledState", "StateHandler"]


class StateHandler:
    """Saves, restores and syncs one value of a state. A subclass has save(), restore() and sync()."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def finish(self) -> None:
        """Blocks until the value has been computed, if that goes on in the background. Called before save()."""

    def save(self) -> None:
        """Copies the value, for restore()."""
        raise NotImplementedError

    def restore(self) -> None:
        """Makes the value what it was at the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the value of rank 0."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Another object takes the value's place, and is saved."""
        self.value = value
        self.save()

    def reset(self) -> None:
        """The world is another one now. Does nothing by default."""


class HandledState(ObjectState):
    """`handlers`: by the names of attributes. Other keywords are plain values."""

    def __init__(
        self,
        bcast_object: Callable[..., Any],
        get_rank: Callable[[], int],
        handlers: Mapping[str, StateHandler],
        **kwargs: Any,
    ) -> None:
        self._handlers: dict[str, StateHandler] = dict(handlers)
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        super().__init__(bcast_object, get_rank, **kwargs)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.finish()
        settle_gpus()  # before the first value is replaced
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    @saves
    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()  # saves all of it

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        handler = self.__dict__.get("_handlers", {}).get(name)  # a subclass may set attributes before it calls ours
        if handler is not None:
            handler.set_value(value)
