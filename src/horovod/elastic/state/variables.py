# SPDX-License-Identifier: Apache-2.0
"""Values of a state that are lists of variables, which are changed in place: as arrays, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from horovod.core.variables import Array, broadcast_arrays
from horovod.elastic.state.handlers import StateHandler

__all__ = ["Access", "AtOnce", "VariablesHandler"]


class Access(Protocol):
    """How variables are read and written."""

    def read(self, variables: Sequence[Any]) -> list[Array]:
        """Copies of their values."""
        ...

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        """Assigns the values, which stay the caller's."""
        ...


class AtOnce:
    """For variables with numpy() and assign(): those of TensorFlow 2 and of Keras."""

    def read(self, variables: Sequence[Any]) -> list[Array]:
        return [_own(variable.numpy()) for variable in variables]

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(np.array(value))  # some frameworks go on using the array that they are given


class VariablesHandler(StateHandler):
    """`kept(value)`: its variables, which save() copies and restore() puts back. `name`: of the value, in broadcasts.

    `sent(value)`: those that sync() makes equal on all ranks, if others stay each rank's own.
    """

    def __init__(
        self,
        value: Any,
        name: str,
        access: Access,
        kept: Callable[[Any], Sequence[Any]],
        sent: Callable[[Any], Sequence[Any]] | None = None,
    ) -> None:
        super().__init__(value)
        self._name = f"elastic.{name}"
        self._access = access
        self._kept = kept
        self._sent = sent or kept
        self._saved: list[Array] = []
        self.save()

    def finish(self) -> None:
        for variable in self._kept(self.value):
            wait = getattr(getattr(variable, "value", None), "block_until_ready", None)  # Keras on JAX
            if wait is not None:
                wait()

    def save(self) -> None:
        self._saved = self._access.read(self._kept(self.value))

    def restore(self) -> None:
        self._access.write(self._kept(self.value), self._saved)

    def sync(self) -> None:
        variables = self._sent(self.value)
        self._access.write(variables, broadcast_arrays(self._access.read(variables), 0, self._name))


def _own(value: Any) -> Array:
    array = np.asarray(value)
    return array if array.flags.owndata and array.flags.writeable else array.copy()
