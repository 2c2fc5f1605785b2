# SPDX-License-Identifier: Apache-2.0
"""backward_passes_per_step for Keras: gradients of several passes are summed before they are reduced and applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from horovod.core.exceptions import InvalidRequestError
from horovod.core.reduction_options import ReductionOptions

__all__ = ["accumulation"]

Apply = Callable[[list[Any]], Any]


class _Eager:
    """For the PyTorch backend."""

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = passes
        self._divisor = passes if average else 1
        self._count = 0
        self._sums: list[Any] = []

    def __call__(self, gradients: Sequence[Any], apply: Apply) -> Any:
        if self._count == 0:
            self._sums = [None] * len(gradients)
        for index, gradient in enumerate(gradients):  # a pass may leave a variable out
            if self._sums[index] is None:
                self._sums[index] = None if gradient is None else gradient.detach().clone()
            elif gradient is not None:
                self._sums[index] += gradient
        self._count = (self._count + 1) % self._passes
        if self._count != 0:
            return None
        sums, self._sums = self._sums, []
        return apply([None if total is None else total / self._divisor for total in sums])


class _TensorFlow:
    """In a compiled step, too."""

    def __init__(self, passes: int, average: bool, sparse_as_dense: bool) -> None:
        from horovod.tensorflow.gradient_aggregation import Sums

        self._sums = Sums(passes, average, sparse_as_dense)

    def __call__(self, gradients: Sequence[Any], apply: Apply) -> Any:
        import tensorflow as tf

        whole = self._sums.add(gradients)

        def last() -> Any:
            apply(whole)
            self._sums.clear()
            return tf.constant(True)

        return tf.cond(self._sums.is_last, last, lambda: tf.constant(False))


def accumulation(options: ReductionOptions) -> Any:
    """Of the running backend: called with a pass' gradients and with what applies the sums."""
    passes, average = options.backward_passes_per_step, options.average_aggregated_gradients
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _TensorFlow(passes, average, options.sparse_as_dense)
    if backend == "torch":
        return _Eager(passes, average)
    raise InvalidRequestError(
        f"backward_passes_per_step={passes} is not supported with Keras' backend {backend}\n"
        f"hint: Keras' own gradient_accumulation_steps={passes}, given to the optimizer, does the same"
    )
