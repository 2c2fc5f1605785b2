# SPDX-License-Identifier: Apache-2.0
"""Gradients in a list, for JAX and for Keras on JAX (steps 1 and 2 of a gradient's way).

All gradients of a step are one call of the native handler, or one for each group. The calls have no effect (see
compiled.py): their results are used, and a program with effects starts slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.core.gradient_list import GradientList
from horovod.jax.ops import reduced_for_use
from horovod.jax.traces import tell

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
        groups = grouped if self.options.groups else [list(range(len(tensors)))]
        received = list(tensors)
        for group in groups:
            label = name if len(groups) == 1 else f"{name}.{group[0]}"
            reduced = reduced_for_use([tensors[position] for position in group], label, self.options.how)
            for position, result in zip(group, reduced, strict=True):
                received[position] = result
        return received

    def tell(self, grouped: list[list[int]], name: str, error: Exception) -> None:
        tell("grouped_allreduce", name, error, self.options.process_set)
