# SPDX-License-Identifier: Apache-2.0
"""Gradients in a list, for JAX and for Keras on JAX (steps 1 and 2 of a gradient's way).

All gradients of a step are one call of the native handler, or one for each group. The calls have no effect (see
compiled.py): their results are used, and a program with effects starts slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.core.gradient_list import GradientList
from horovod.core.native import ALLREDUCE
from horovod.jax.ops import collectives, traced
from horovod.jax.shim import is_eager

__all__ = ["JaxGradients"]


class JaxGradients(GradientList):
    """See core/gradient_list.py."""

    def key_of(self, variable: Any) -> Any:
        return id(variable)

    def is_sparse(self, gradient: Any) -> bool:
        return False

    def to_dense(self, gradient: Any) -> Any:
        return gradient.todense() if hasattr(gradient, "todense") else gradient

    def reduce_sparse(self, gradient: Any, name: str) -> Any:
        raise NotImplementedError  # there are none

    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        how = self.options.how
        groups = self._together(tensors, grouped)
        names = [name] if len(groups) == 1 else [f"{name}.{group[0]}" for group in groups]
        lists = [[tensors[position] for position in group] for group in groups]
        if is_eager():
            started = [
                collectives.grouped_allreduce(group, name, how, False) for group, name in zip(lists, names, strict=True)
            ]
            reduced = [operation.wait() for operation in started]
        else:
            reduced = [
                traced(group, ALLREDUCE, "grouped_allreduce", name, how, ordered=False)
                for group, name in zip(lists, names, strict=True)
            ]
        received = list(tensors)
        for group, results in zip(groups, reduced, strict=True):
            for position, result in zip(group, results, strict=True):
                received[position] = result
        return received

    def _together(self, tensors: list[Any], grouped: list[list[int]]) -> list[list[int]]:
        """Those that are one call."""
        return grouped if self.options.groups else [list(range(len(tensors)))]

    def tell(self, grouped: list[list[int]], name: str, error: Exception) -> None:
        if is_eager():
            collectives.tell("grouped_allreduce", name, error, self.options.process_set)
