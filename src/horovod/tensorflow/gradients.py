# SPDX-License-Identifier: Apache-2.0
"""How a list of gradients becomes the ranks' average (step 2 of a gradient's way, for TensorFlow): what the tape and
every optimizer wrapper share.

In a graph each dense gradient is a node of its own, which runs as soon as backward has computed it; the native engine
fuses what is ready together. Eagerly there is nothing to overlap with, so all dense gradients are one operation.
Sparse gradients (tf.IndexedSlices) stay sparse unless `sparse_as_dense`.

The ranks' gradients meet by their place in the list, not by their variables' names: Keras numbers layers by what a
process has built before, which may differ. The name holds a sum over all shapes, so that two models of one program do
not take each other's place.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core import context as contexts
from horovod.core.collectives import resolved
from horovod.core.compression import Compressor, NoneCompressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import ops
from horovod.tensorflow.shim import operations

__all__ = ["Reduction", "key_of"]

_steps = itertools.count(1)


def key_of(variable: Any) -> Any:
    """What tells a variable from another; variables themselves compare by value."""
    return variable.ref() if hasattr(variable, "ref") else id(variable)


@dataclasses.dataclass
class Reduction:
    """Averages gradients over the ranks of a process set. Raises ValueError for options that do not fit together."""

    name: str = "gradients"
    op: int = Average
    compression: type[Compressor] = NoneCompressor
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: Any = None  # None, a number of groups, or lists of variables
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    device_dense: str = ""
    device_sparse: str = ""

    def __post_init__(self) -> None:
        self._local: set[Any] = set()
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise InvalidRequestError("gradient_predivide_factor goes with op=Average only")
        if self.groups is not None and not isinstance(self.groups, list) and not (
            isinstance(self.groups, int) and self.groups >= 0
        ):
            raise InvalidRequestError(
                f"groups={self.groups!r}: expected a number of groups, or a list of lists of variables"
            )

    def register_local(self, variable: Any) -> None:
        """The gradient of `variable` is not reduced: every rank trains its own."""
        self._local.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        return bool(self._local) and key_of(variable) in self._local

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> list[Any]:
        """The reduced gradients, in order; None stays None. `variables`: needed for groups and local ones."""
        results = list(gradients)
        if not self.process_set.included() or self._alone():
            return results
        members = self.process_set.size() or 1
        reduced: list[int] = []
        for index, gradient in enumerate(results):
            if gradient is None:
                continue
            if variables is not None and self.is_local(variables[index]):
                if self.scale_local_gradients:
                    results[index] = gradient / members
                continue
            if self.sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
                results[index] = tf.convert_to_tensor(gradient)
            reduced.append(index)
        sparse = [index for index in reduced if isinstance(results[index], tf.IndexedSlices)]
        dense = [index for index in reduced if index not in set(sparse)]
        name = self._unique_name([results[index] for index in reduced])
        for index in sparse:
            results[index] = self._sparse(results[index], f"{name}.{index}")
        for index, tensor in zip(dense, self._dense(results, dense, name, variables), strict=True):
            results[index] = tensor
        return results

    def _alone(self) -> bool:
        return contexts.size() == 1

    def _unique_name(self, gradients: Sequence[Any]) -> str:
        described = ";".join(f"{gradient.dtype.name}{gradient.shape}" for gradient in gradients)
        name = f"{self.name}_{zlib.crc32(described.encode()):08x}"
        return name if tf.executing_eagerly() else str(tf.compat.v1.get_default_graph().unique_name(name))

    def _how(self) -> tuple[int, None, float, float, ProcessSet]:
        factor = self.gradient_predivide_factor
        return (self.op, None, 1.0 / factor, factor, self.process_set)

    def _sparse(self, gradient: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
        sent, ctx = self.compression.compress(gradient.values)
        slices = tf.IndexedSlices(sent, gradient.indices, gradient.dense_shape)
        reduced = ops.allreduce(
            slices, op=self.op, name=name, process_set=self.process_set, device_sparse=self.device_sparse
        )
        values = self.compression.decompress(reduced.values, ctx)
        return tf.IndexedSlices(values, reduced.indices, reduced.dense_shape)

    def _dense(self, results: list[Any], dense: list[int], name: str, variables: Sequence[Any] | None) -> list[Any]:
        if not dense:
            return []
        pairs = [self.compression.compress(tf.convert_to_tensor(results[index])) for index in dense]
        sent = [tensor for tensor, _ in pairs]
        with tf.device(self.device_dense or None):
            if tf.executing_eagerly():
                received = ops.grouped_allreduce(
                    sent,
                    op=self.op,
                    prescale_factor=1.0 / self.gradient_predivide_factor,
                    postscale_factor=self.gradient_predivide_factor,
                    process_set=self.process_set,
                    name=name,
                )
            else:
                received = self._nodes(sent, self._grouped(dense, variables), name)
        return [
            self.compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(received, pairs, strict=True)
        ]

    def _nodes(self, sent: list[tf.Tensor], grouped: list[list[int]], name: str) -> list[tf.Tensor]:
        """One node for each group of positions in `sent`."""
        op, prescale, postscale, set_number = resolved(self._how())
        ops.check_op(op, sent)
        received: list[Any] = list(sent)
        step = f"{name}#{next(_steps)}"
        anchor = ops.rank_op()
        for group in grouped:
            label = f"{name}.{group[0]}" if len(group) == 1 else f"{name}.{group[0]}to{group[-1]}"
            reduced = operations().horovod_reduce_gradient(
                anchor=anchor,
                tensors=[sent[position] for position in group],
                tensor_name=f"allreduce.{label}",
                process_set=set_number,
                reduce_op=op,
                prescale=repr(prescale),
                postscale=repr(postscale),
                step=step,
                gradients_of_step=len(grouped),
            )
            for position, tensor in zip(group, reduced, strict=True):
                received[position] = tensor
        return received

    def _grouped(self, dense: list[int], variables: Sequence[Any] | None) -> list[list[int]]:
        """Positions in `dense` that are reduced as one. Without groups: each alone."""
        positions = list(range(len(dense)))
        if not self.groups:
            return [[position] for position in positions]
        if isinstance(self.groups, int):
            count = min(self.groups, len(positions))
            ends = [len(positions) * index // count for index in range(count + 1)]
            return [positions[start:end] for start, end in itertools.pairwise(ends)]
        if variables is None:
            raise InvalidRequestError("groups of variables need the variables that the gradients belong to")
        position_of = {key_of(variables[index]): position for position, index in enumerate(dense)}
        groups = [[position_of[key_of(v)] for v in group if key_of(v) in position_of] for group in self.groups]
        groups = [sorted(group) for group in groups if group]
        taken = set(itertools.chain.from_iterable(groups))
        return groups + [[position] for position in positions if position not in taken]
