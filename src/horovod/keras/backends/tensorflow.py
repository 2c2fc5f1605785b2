# SPDX-License-Identifier: Apache-2.0
"""Keras on TensorFlow, and tf-keras: gradients are horovod.tensorflow's nodes (steps 1 and 2 of a gradient's way).

And what callbacks do while a step is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.gradients.options import ReductionOptions
from horovod.tensorflow import xla
from horovod.tensorflow.gradient_aggregation import Sums
from horovod.tensorflow.gradient_list import TensorFlowGradients
from horovod.tensorflow.state import broadcast_global_variables, broadcast_variables
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "FirstRun",
    "accumulation",
    "broadcast_global_variables",
    "can_compile",
    "gradient_list",
    "graph_backend",
    "is_compiled",
    "is_traced",
    "layers_of",
    "run_broadcast",
]

gradient_list = TensorFlowGradients


class _Accumulation:
    """Sums gradients, and applies the sums in the last pass of a step: in a compiled step, too."""

    def __init__(self, options: ReductionOptions) -> None:
        self._sums = Sums(
            options.backward_passes_per_step, options.average_aggregated_gradients, options.sparse_as_dense
        )

    def __call__(self, gradients: Sequence[Any], apply: Callable[[list[Any]], Any]) -> Any:
        whole = self._sums.add(gradients)

        def last() -> Any:
            apply(whole)
            self._sums.clear()
            return tf.constant(True)

        return tf.cond(self._sums.is_last, last, lambda: tf.constant(False))

    def restart(self) -> None:
        """Forgets the passes of a step that is not complete."""
        self._sums.restart()


accumulation = _Accumulation


def can_compile() -> bool:
    """True if this TensorFlow's XLA can hold the reductions."""
    return xla.problem() is None


def layers_of(own: Any) -> list[type]:
    """Horovod's layers for `own`, Keras 3 or tf-keras: a file may name them."""
    return [SyncBatchNormalization] if issubclass(SyncBatchNormalization, own.layers.Layer) else []


def is_traced() -> bool:
    """True while a compiled step is made, false while it runs."""
    return not tf.executing_eagerly()


def is_compiled() -> bool:
    """True if XLA will compile the step that is being traced."""
    return is_traced() and xla.is_compiling()


def is_graph_of_tensorflow_1() -> bool:
    """True in a graph of TensorFlow 1: even the outermost function does not run eagerly."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def graph_backend() -> Any:
    """See horovod.keras.backends."""
    return tf.compat.v1.keras.backend if is_graph_of_tensorflow_1() else None


def run_broadcast(backend: Any, variables: Sequence[Any], root_rank: int) -> None:
    """Broadcasts in the session of a graph of TensorFlow 1."""
    backend.get_session().run(broadcast_variables(variables, root_rank))


class FirstRun:
    """A broadcast for a step of TensorFlow that is being traced, whose variables get values only when it runs.

    It may be traced more than once before it runs.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self._is_done = tf.Variable(False, trainable=False)

    def broadcast(self, variables: Sequence[Any], root_rank: int) -> None:
        def run() -> Any:
            with tf.control_dependencies([broadcast_variables(variables, root_rank)]):
                return self._is_done.assign(True).read_value()

        tf.cond(self._is_done, lambda: tf.constant(True), run)


def is_eager() -> bool:
    """True if operations run at once."""
    return bool(tf.executing_eagerly())
