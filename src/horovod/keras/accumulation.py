# SPDX-License-Identifier: Apache-2.0
"""backward_passes_per_step for Keras: gradients of several passes are summed before they are reduced and applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from horovod.core.exceptions import InvalidRequestError

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
    """In variables of TensorFlow, so that a compiled step may hold it; they are no part of the optimizer that is
    saved."""

    def __init__(self, passes: int, average: bool, sparse_as_dense: bool) -> None:
        self._passes = passes
        self._divisor = passes if average else 1
        self._sparse_as_dense = sparse_as_dense
        self._count: Any = None
        self._sums: list[Any] = []

    def __call__(self, gradients: Sequence[Any], apply: Apply) -> Any:
        import tensorflow as tf

        if not self._sparse_as_dense and any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            raise InvalidRequestError(
                "backward_passes_per_step > 1 sums gradients in dense variables: IndexedSlices need "
                "sparse_as_dense=True"
            )
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        with tf.init_scope():
            if self._count is None:
                self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
                self._sums = [None] * len(dense)
            for index, gradient in enumerate(dense):  # a pass may leave a variable out
                if self._sums[index] is None and gradient is not None:
                    self._sums[index] = tf.Variable(tf.zeros(gradient.shape, gradient.dtype), trainable=False)
        for total, gradient in zip(self._sums, dense, strict=True):
            if gradient is not None:
                total.assign_add(gradient)
        self._count.assign_add(1)

        def last() -> Any:
            apply([None if total is None else total / self._divisor for total in self._sums])
            for total in self._sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            return tf.constant(True)

        return tf.cond(tf.equal(self._count % self._passes, 0), last, lambda: tf.constant(False))


def accumulation(passes: int, average: bool, sparse_as_dense: bool) -> Any:
    """Of the running backend: called with a pass' gradients and with what applies the sums."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _TensorFlow(passes, average, sparse_as_dense)
    if backend == "torch":
        return _Eager(passes, average)
    raise InvalidRequestError(
        f"backward_passes_per_step={passes} is not supported with Keras' backend {backend}\n"
        f"hint: Keras' own gradient_accumulation_steps={passes}, given to the optimizer, does the same"
    )
