# SPDX-License-Identifier: Apache-2.0
"""How an optimizer becomes a distributed one (step 1).

It becomes an instance of a subclass of its class that shares its parameter groups and state, so that isinstance,
schedulers and checkpoints keep working.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Wrapped", "find_duplicates", "is_trainable", "wrapped_as"]


class Wrapped:
    """The base of every mixin."""

    param_groups: list[dict[str, Any]]
    state: dict[Any, Any]
    _hvd_retired = False

    def _hvd_retire(self) -> None:
        """Lets its hooks do nothing any more: another optimizer will have its parameters."""
        self._hvd_retired = True

    def __setstate__(self, loaded: dict[str, Any]) -> None:
        """How load_state_dict puts new groups and state in place: into the containers that the unwrapped one shares.

        A scheduler that was made before holds the unwrapped one, and changes its groups.
        """
        groups, state = self.__dict__.get("param_groups"), self.__dict__.get("state")
        super().__setstate__(loaded)  # type: ignore[misc]
        if groups is not None and groups is not self.param_groups:
            groups[:] = self.param_groups
            self.param_groups = groups
        if state is not None and state is not self.state:
            state.clear()
            state.update(self.state)
            self.state = state


def wrapped_as(optimizer: torch.optim.Optimizer, mixin: type[Wrapped]) -> Any:
    """The optimizer with the methods of `mixin` before its own."""
    kind = type(optimizer)
    # Step hooks run in the optimizer's own step, so load_state_dict must not wrap this one in them as well.
    mixin.step.hooked = True  # type: ignore[attr-defined]
    wrapped: Any = object.__new__(type(kind.__name__, (mixin, kind), {"__module__": kind.__module__}))
    # A scheduler made before has put a step bound to the unwrapped optimizer into the instance.
    wrapped.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    if "step" in vars(optimizer):
        # ... and looks there whether steps are taken, which are those of the wrapped one from now on.
        optimizer._opt_called = True
    return wrapped


def find_duplicates(lst: Iterable[Any]) -> set[Any]:
    """Returns the items that `lst` contains more than once."""
    return {item for item, times in Counter(lst).items() if times > 1}


def is_trainable(parameter: Tensor) -> bool:
    # A complex gradient has no reduction yet: it fails with an error that says so; skipping it would say nothing.
    return bool(parameter.is_floating_point() or parameter.is_complex())
