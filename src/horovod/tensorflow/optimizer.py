# SPDX-License-Identifier: Apache-2.0
"""hvd.DistributedOptimizer for TensorFlow: chooses the wrapper for the optimizer's kind, and holds that for
tf.compat.v1.train (steps 1 and 2 of a gradient's way). Keras optimizers: horovod.keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.compression import Compressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Adasum, Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradients import TensorFlowGradients

__all__ = ["DistributedOptimizer"]

_LegacyOptimizer: Any = tf.compat.v1.train.Optimizer


class _Accumulation:
    """Gradients of several passes, summed in variables; every pass but the last applies nothing."""

    def __init__(self, passes: int, average: bool, sparse_as_dense: bool) -> None:
        self.passes = passes
        self.average = average
        self.sparse_as_dense = sparse_as_dense
        self._counter: Any = None
        self._sums: list[Any] = []

    def dense(self, gradients: Sequence[Any]) -> list[Any]:
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients) and not self.sparse_as_dense:
            raise InvalidRequestError(
                "backward_passes_per_step > 1 sums gradients in dense variables: IndexedSlices need "
                "sparse_as_dense=True"
            )
        return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]

    def add(self, gradients: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Nodes: whether this pass is the last of a step, and the sums with it."""
        if self._counter is None:
            with tf.name_scope("horovod_accumulation"):
                self._counter = self._variable(tf.zeros([], tf.int32), "counter")
                self._sums = [
                    None if gradient is None else self._variable(tf.zeros_like(gradient), f"sum_{index}")
                    for index, gradient in enumerate(gradients)
                ]
        sums = [
            None if gradient is None else total.assign_add(gradient)
            for total, gradient in zip(self._sums, gradients, strict=True)
        ]
        with tf.control_dependencies([node for node in sums if node is not None]):
            count = self._counter.assign_add(1)
        return tf.equal(count % self.passes, 0), [None if node is None else node + 0 for node in sums]

    def clear(self) -> Any:
        return tf.group(*(total.assign(tf.zeros_like(total)) for total in self._sums if total is not None))

    def _variable(self, initial: Any, name: str) -> Any:
        return tf.compat.v1.get_variable(
            f"{tf.compat.v1.get_default_graph().unique_name('horovod_' + name)}",
            initializer=tf.zeros(initial.shape, initial.dtype),
            trainable=False,
            use_resource=True,
        )


class _DistributedV1Optimizer(_LegacyOptimizer):
    """Wraps an optimizer of tf.compat.v1.train: compute_gradients reduces, all else is the wrapped one's."""

    def __init__(
        self, optimizer: Any, reduction: TensorFlowGradients, name: str | None, use_locking: bool, accumulation: Any
    ) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        self._accumulation: _Accumulation | None = accumulation
        self._is_last: Any = None

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is not reduced: every rank trains its own."""
        self._reduction.register_local(variable)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As the wrapped optimizer's, averaged over the ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        accumulation = self._accumulation
        if accumulation is None:
            return list(zip(self._reduction(gradients, variables), variables, strict=True))
        self._is_last, sums = accumulation.add(accumulation.dense(gradients))
        given = [total for total in sums if total is not None]

        def reduced() -> list[Any]:
            divisor = accumulation.passes if accumulation.average else 1
            whole = [None if total is None else total / divisor for total in sums]
            return [tensor for tensor in self._reduction(whole, variables) if tensor is not None]

        chosen = iter(tf.cond(self._is_last, reduced, lambda: list(given)))
        return [(None if total is None else next(chosen), v) for total, v in zip(sums, variables, strict=True)]

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The wrapped optimizer's; with backward_passes_per_step > 1 only on the last pass of a step."""
        pairs = list(grads_and_vars)
        accumulation = self._accumulation
        if accumulation is None or self._is_last is None:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        self._optimizer._create_slots([variable for gradient, variable in pairs if gradient is not None])

        def apply() -> Any:
            with tf.control_dependencies([self._optimizer.apply_gradients(pairs, global_step=global_step)]):
                return tf.group(accumulation.clear(), tf.no_op())

        return tf.cond(self._is_last, apply, lambda: tf.group(tf.no_op()), name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that averages gradients over the ranks before it applies them. Takes optimizers of Keras 3, of
    tf-keras, and of tf.compat.v1.train.

    backward_passes_per_step: gradients of so many passes are summed (averaged with average_aggregated_gradients) before
    they are reduced and applied; other passes apply nothing. groups: a number of groups, or lists of variables, whose
    gradients are reduced as one.
    """
    if backward_passes_per_step < 1:
        raise InvalidRequestError(f"backward_passes_per_step={backward_passes_per_step}: expected 1 or more")
    if op == Adasum:
        raise NotImplementedError(
            "DistributedOptimizer with op=Adasum is not supported for TensorFlow yet\n"
            "hint: DistributedGradientTape(tape, op=Adasum) combines gradients so"
        )
    if not isinstance(optimizer, _LegacyOptimizer):
        from horovod.keras.optimizer import distributed

        return distributed(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups if groups is not None else num_groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    if isinstance(optimizer, _DistributedV1Optimizer):
        raise InvalidRequestError("DistributedOptimizer: this optimizer is distributed already")
    if backward_passes_per_step > 1 and tf.executing_eagerly():
        raise InvalidRequestError(
            "backward_passes_per_step > 1 with an optimizer of tf.compat.v1.train needs a graph\n"
            "hint: a Keras optimizer does it eagerly, too"
        )
    reduction = TensorFlowGradients(
        name=name or "DistributedOptimizer",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups if groups is not None else num_groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    accumulation = (
        _Accumulation(backward_passes_per_step, average_aggregated_gradients, sparse_as_dense)
        if backward_passes_per_step > 1
        else None
    )
    return _DistributedV1Optimizer(optimizer, reduction, name, use_locking, accumulation)
