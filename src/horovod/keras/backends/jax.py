# SPDX-License-Identifier: Apache-2.0
"""Keras on JAX: one call out of the compiled step for all gradients (steps 1 and 2 of a gradient's way).

What a compiled step calls one by one may run in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from horovod.core.arrays import collectives
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import SYNC
from horovod.core.reduction_options import ReductionOptions
from horovod.keras.backends import DenseGradients

__all__ = ["accumulation", "can_compile", "gradient_list"]


class _Gradients(DenseGradients):
    def to_dense(self, gradient: Any) -> Any:
        return gradient.todense() if hasattr(gradient, "todense") else gradient

    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        how = self.options.how

        def reduce(*values: Any) -> tuple[Any, ...]:
            given = [np.array(value) for value in values]
            return tuple(collectives.grouped_allreduce(given, name, how, False, SYNC).wait())

        shapes = tuple(jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in tensors)
        return list(jax.experimental.io_callback(reduce, shapes, *tensors, ordered=True))


gradient_list = _Gradients


def accumulation(options: ReductionOptions) -> NoReturn:
    """Raises ValueError: a compiled step of JAX keeps no state of ours."""
    passes = options.backward_passes_per_step
    raise InvalidRequestError(
        f"backward_passes_per_step={passes} is not supported with Keras backend jax\n"
        f"hint: Keras' own gradient_accumulation_steps={passes}, given to the optimizer, does the same"
    )


def can_compile() -> bool:
    """True: XLA calls back."""
    return True
