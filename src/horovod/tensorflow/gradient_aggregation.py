# SPDX-License-Identifier: Apache-2.0
"""backward_passes_per_step for TensorFlow (step 2 of a gradient's way).

Gradients of several passes are summed in variables before they are reduced and applied. Every pass but the last of a
step applies nothing.

It works eagerly, in tf.function and in graphs of TensorFlow 1, which order nothing by themselves: so each read follows
its write by a dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.gradients.options import check_passes
from horovod.tensorflow.gradient_list import members_of
from horovod.tensorflow.tensors import plain_variable

__all__ = [
    "LocalGradientAggregationHelper",
    "Sums",
    "apply_op_to_not_none_tensors",
    "get_not_none_from_list",
]


def apply_op_to_not_none_tensors(tensor_op: Callable[..., Any], tensors: Sequence[Any], *args: Any) -> list[Any]:
    """tensor_op(tensor, *args) of each; None stays None."""
    return [None if tensor is None else tensor_op(tensor, *args) for tensor in tensors]


def get_not_none_from_list(tensor_list: Sequence[Any]) -> list[Any]:
    """Those that are not None."""
    return [tensor for tensor in tensor_list if tensor is not None]


class Sums:
    """The variables that hold the sums of gradients.

    Each is made by the first pass that has its gradient, in the graph of that gradient. They are not saved with an
    optimizer. Not for two optimizers at once.
    """

    def __init__(self, passes: int, average: bool, sparse_as_dense: bool) -> None:
        self._passes = passes
        self._divisor = passes if average else 1
        self._sparse_as_dense = sparse_as_dense
        self._counter: Any = None
        self._sums: list[Any] = []
        self.is_last: Any = None  # whether the pass that was added last ends a step: a bool tensor

    def add(self, gradients: Sequence[Any]) -> list[Any]:
        """The sums (averages with `average`) with this pass' gradients.

        Raises ValueError for tf.IndexedSlices without sparse_as_dense.
        """
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients) and not self._sparse_as_dense:
            raise InvalidRequestError(
                "backward_passes_per_step > 1 sums gradients in dense variables: IndexedSlices need "
                "sparse_as_dense=True"
            )
        dense = apply_op_to_not_none_tensors(tf.convert_to_tensor, gradients)
        with tf.init_scope(), tf.name_scope("horovod_accumulation"):
            if self._counter is None:
                self._counter = _variable("counter", tf.TensorShape([]), tf.int64)
                self._sums = [None] * len(dense)
            for index, gradient in enumerate(dense):  # a pass may leave a variable out
                if self._sums[index] is None and gradient is not None:
                    self._sums[index] = _variable(f"sum_{index}", gradient.shape, gradient.dtype)
        sums = [
            total if gradient is None else total.assign_add(gradient)
            for total, gradient in zip(self._sums, dense, strict=True)
        ]
        sums = apply_op_to_not_none_tensors(tf.convert_to_tensor, sums)
        with tf.control_dependencies(get_not_none_from_list(sums)):
            count = tf.convert_to_tensor(self._counter.assign_add(1))
        self.is_last = tf.equal(count % self._passes, 0)
        return apply_op_to_not_none_tensors(lambda total: total / self._divisor, sums)

    def clear(self) -> Any:
        """Zeros, for the next step. In a graph of TensorFlow 1: the node that writes them."""
        return tf.group(*(total.assign(tf.zeros_like(total)) for total in get_not_none_from_list(self._sums)))

    def restart(self) -> None:
        """Forgets the passes of a step that is not complete. Eagerly only."""
        if self._counter is not None and tf.executing_eagerly():
            self._counter.assign(0)
            self.clear()


def _variable(name: str, shape: Any, dtype: Any) -> Any:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return tf.Variable(tf.zeros(shape, dtype), trainable=False)
    # Among the global variables, which a session initializes and Horovod broadcasts.
    unique = tf.compat.v1.get_default_graph().unique_name(f"horovod_{name}")
    return tf.compat.v1.get_variable(unique, initializer=tf.zeros(shape, dtype), trainable=False, use_resource=True)


class LocalGradientAggregationHelper:
    """Sums gradients around an optimizer: compute_gradients(), and then apply_gradients() with what applies them.

    allreduce_func(gradients, variables): the reduced gradients; called for the sums of a whole step, without None and
    without local variables. `rank`, `optimizer_type` and `name` told graphs apart, and are accepted.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: Any,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        check_passes(backward_passes_per_step)
        self._sums = Sums(backward_passes_per_step, average_aggregated_gradients, sparse_as_dense)
        self._allreduce = allreduce_func
        self._process_set = process_set
        self._scale_local_gradients = scale_local_gradients
        self._local: set[Any] = set()

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced: every rank trains its own."""
        self._local.add(plain_variable(var).ref())

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """On the last pass of a step the reduced sums, otherwise the sums so far; None stays None."""
        sums = self._sums.add(grads)
        there = get_not_none_from_list(sums)
        if not there:
            return sums
        chosen = iter(tf.cond(self._sums.is_last, lambda: self._reduced(sums, vars), lambda: list(there)))
        return apply_op_to_not_none_tensors(lambda _: next(chosen), sums)

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the closure if the pass ends a step; the optimizer's iterations stand still on the others.

        After compute_gradients().
        """

        def apply() -> Any:
            applied = apply_grads_closure()
            with tf.control_dependencies([] if applied is None else [applied]):
                return tf.group(self._sums.clear(), tf.no_op())

        return tf.cond(self._sums.is_last, apply, lambda: tf.group(tf.no_op()), name=kwargs.get("name"))

    def _reduced(self, sums: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        results = list(sums)
        shared = []
        for index, total in enumerate(sums):
            if total is None:
                continue
            if not self._local or plain_variable(variables[index]).ref() not in self._local:
                shared.append(index)
            elif self._scale_local_gradients:
                results[index] = total / tf.cast(members_of(self._process_set), total.dtype)
        received = self._allreduce([sums[index] for index in shared], [variables[index] for index in shared])
        for index, tensor in zip(shared, received, strict=True):
            results[index] = tensor
        return get_not_none_from_list(results)
