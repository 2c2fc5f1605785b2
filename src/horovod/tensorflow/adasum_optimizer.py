# SPDX-License-Identifier: Apache-2.0
"""op=Adasum for optimizers of tf.compat.v1.train (step 2 of a gradient's way).

Each rank takes its own step, and Adasum combines the changes of the variables. Gradients are never reduced, so clipping
and momentum are each rank's own. Keras optimizers do the same in horovod.keras.distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.tensorflow.gradient_list import TensorFlowGradients

__all__ = ["Moves"]


class Moves:
    """The changes of variables in one step."""

    def __init__(self, reduction: TensorFlowGradients) -> None:
        self._reduction = reduction
        self._starts: dict[Any, Any] = {}

    def prepare(self, variables: Sequence[Any]) -> None:
        """In a graph of TensorFlow 1: makes a variable for each old value; this cannot be done inside a condition.

        If a variable is not a resource, a graph's read of it shares its memory and changes with it; only a variable of
        the same kind makes a copy.
        """
        if tf.compat.v1.executing_eagerly_outside_functions():
            return
        for variable in variables:
            if variable.ref() not in self._starts:
                unique = tf.compat.v1.get_default_graph().unique_name("horovod_start")
                self._starts[variable.ref()] = tf.compat.v1.get_variable(
                    unique,
                    initializer=tf.zeros(variable.shape, variable.dtype.base_dtype),
                    trainable=False,
                    use_resource=hasattr(variable, "handle"),
                )

    def combined(self, variables: Sequence[Any], update: Callable[[], Any]) -> Any:
        """Runs `update`, then sets the variables to their old values plus Adasum's combination of the changes.

        Local variables keep the values of `update`. In a graph: returns the node that does all this.
        """
        shared = [variable for variable in variables if not self._reduction.is_local(variable)]
        if not self._reduction.is_active:
            return update()
        starts = [self._start_of(variable) for variable in shared]
        with tf.control_dependencies(starts):
            updated = update()
        with tf.control_dependencies([] if updated is None else [updated]):
            moves = [variable.read_value() - start for variable, start in zip(shared, starts, strict=True)]
        combined = self._reduction(moves, shared)
        return tf.group(
            *(v.assign(start + move) for v, start, move in zip(shared, starts, combined, strict=True)), tf.no_op()
        )

    def _start_of(self, variable: Any) -> Any:
        kept = self._starts.get(variable.ref())
        return variable.read_value() if kept is None else tf.convert_to_tensor(kept.assign(variable))
