# SPDX-License-Identifier: Apache-2.0
"""Gradients in a list, for TensorFlow (steps 1 and 2 of a gradient's way).

The tape and every optimizer wrapper share this.

In a graph each dense gradient is a separate node, which runs as soon as backward has computed it; the native engine
fuses the gradients that are ready together. Eagerly there is nothing to overlap with, so all dense gradients are one
operation. Sparse gradients (tf.IndexedSlices) stay sparse, except with `sparse_as_dense`, or if XLA compiles, as XLA
must know all shapes beforehand.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.core import context as contexts
from horovod.core.collectives import resolved
from horovod.core.compression import compressed
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import ALLREDUCE, Sum
from horovod.core.process_sets import ProcessSet, lasting_number, number_of, speaks
from horovod.core.tracebacks import warn
from horovod.gradients.lists import GradientList
from horovod.gradients.step_check import sampled
from horovod.tensorflow import autograd, ops, xla
from horovod.tensorflow.rank_ops import size_op
from horovod.tensorflow.shim import library, operations
from horovod.tensorflow.tensors import as_pairs, check_op, plain_variable, reduction_attributes, unique_name

__all__ = ["TensorFlowGradients", "members_of"]

_steps = itertools.count(1)


def members_of(process_set: ProcessSet) -> Any:
    """The number of ranks of a set; in a graph of an elastic job, the number at the time that it runs."""
    if tf.executing_eagerly() or not contexts.may_grow():
        return process_set.size() or 1
    if xla.is_compiling():  # XLA cannot ask for the size
        return ops.allreduce(tf.ones([]), op=Sum, name="members", process_set=process_set)
    return size_op(lasting_number(process_set))


def _elements(gradient: Any) -> Any:
    """All of a dense tensor, those of a sparse one that are there."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


class TensorFlowGradients(GradientList):
    """See gradients/lists.py."""

    def key_of(self, variable: Any) -> Any:
        plain = plain_variable(variable)
        return plain.ref() if hasattr(plain, "ref") else id(plain)

    def is_sparse(self, gradient: Any) -> bool:
        return isinstance(gradient, tf.IndexedSlices) and not xla.is_compiling()

    def to_dense(self, gradient: Any) -> Any:
        is_told = self.options.sparse_as_dense or not speaks(self.options.process_set)
        if isinstance(gradient, tf.IndexedSlices) and not is_told:
            warn(
                "sparse gradients are reduced as dense ones if XLA compiles the step: an optimizer that updates the "
                "rows of sparse gradients alone, as Adam does, updates all rows then\n"
                "hint: jit_compile=False keeps them sparse; sparse_as_dense=True says that dense is wanted"
            )
        return tf.convert_to_tensor(gradient)

    def members(self) -> Any:
        return members_of(self.options.process_set)

    def divided(self, gradient: Any, divisor: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(self.divided(gradient.values, divisor), gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(divisor, gradient.dtype)

    def when_ready(self, gradient: Any, act: Callable[[int], None]) -> Any:
        """An element is read: on a GPU, a kernel that was only queued has run then."""
        if xla.is_compiling():
            raise InvalidRequestError("a step that XLA compiles cannot be profiled\nhint: jit_compile=False")
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        parts = (gradient.values, gradient.indices) if is_sparse else (gradient,)
        sizes = [part.dtype.size * tf.size(part) for part in parts]

        def call(_: Any, *sizes: Any) -> bool:
            act(int(sum(sizes)))
            return True

        element = tf.reshape(parts[0], [-1])[:1]
        if tf.executing_eagerly():
            call(element.numpy(), *sizes)
            return gradient
        # Stateless: TensorFlow would keep the order of stateful calls, which is that of the list. A call whose result
        # nothing takes would be pruned.
        noted = tf.numpy_function(call, [element, *sizes], tf.bool, stateful=False)
        noted.set_shape([])
        parts = tuple(tf.raw_ops.Switch(data=part, pred=noted)[1] for part in parts)
        return tf.IndexedSlices(*parts, gradient.dense_shape) if is_sparse else parts[0]

    def device(self) -> str:
        return "gpu" if tf.config.get_visible_devices("GPU") else "cpu"

    def is_eager(self) -> bool:
        return bool(tf.executing_eagerly())

    def sample(self, gradient: Any) -> Any:
        return sampled(tf.reshape(_elements(gradient), [-1])).numpy()

    def is_finite(self, gradient: Any) -> bool:
        values = _elements(gradient)
        return not values.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(values)))

    def watching_library(self) -> Any:
        return library()

    def options_tensor(self, values: Sequence[Any]) -> Any:
        return tf.stack([tf.cast(value, tf.float32) for value in values])

    def unique(self, name: str) -> str:
        return name if tf.executing_eagerly() else unique_name(name)

    def tell(self, grouped: list[list[int]], name: str, error: Exception) -> None:
        self._tell("grouped_allreduce", name, error)

    def _tell(self, label: str, name: str, error: Exception) -> None:
        if tf.executing_eagerly():
            contexts.current().tell(f"{label}.{name}", number_of(self.options.process_set), str(error))

    def reduce_sparse(self, gradient: Any, name: str) -> Any:
        peers = functools.partial(self._tell, "sparse_allreduce", name)
        ((sent, ctx),) = compressed([gradient.values], self.options.compression, peers)
        reduced = ops.allreduce(
            tf.IndexedSlices(sent, gradient.indices, gradient.dense_shape),
            op=self.options.op,
            name=name,
            process_set=self.options.process_set,
            device_sparse=self.options.device_sparse,
        )
        values = self.options.compression.decompress(reduced.values, ctx)
        return tf.IndexedSlices(values, reduced.indices, reduced.dense_shape)

    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        prescale, postscale = self.options.factors
        with tf.device(self.options.device_dense or None):
            if not tf.executing_eagerly():
                compiled = xla.is_compiling()
                return self._as_one_call(tensors, name) if compiled else self._nodes(tensors, grouped, name)
            return ops.grouped_allreduce(
                tensors,
                op=self.options.op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set=self.options.process_set,
                name=name,
            )

    def _as_one_call(self, tensors: list[Any], name: str) -> list[Any]:
        """For XLA."""
        op = resolved(self.options.how)[0]
        check_op(op, tensors, self.options.process_set)
        pairs, numbers = as_pairs(tensors, op)
        request = f"grouped_allreduce.{name}"
        if self.watch is not None:
            self.watch.follow(request, range(len(tensors)))
        return numbers(autograd.allreduced(pairs, request, reduction_attributes(self.options.how, pairs, ALLREDUCE)))

    def _nodes(self, tensors: list[Any], grouped: list[list[int]], name: str) -> list[Any]:
        op, prescale, postscale, _ = resolved(self.options.how)
        tensors, numbers = as_pairs(tensors, op)
        check_op(op, tensors, self.options.process_set)
        received = list(tensors)
        step = f"{name}#{next(_steps)}"
        anchor = ops.rank_op()
        for group in grouped:
            label = f"{name}.{group[0]}" if len(group) == 1 else f"{name}.{group[0]}to{group[-1]}"
            if self.watch is not None:
                self.watch.follow(f"allreduce.{label}", group)
            reduced = operations().horovod_reduce_gradient(
                anchor=anchor,
                tensors=[tensors[position] for position in group],
                tensor_name=f"allreduce.{label}",
                process_set=lasting_number(self.options.process_set),
                reduce_op=op,
                prescale=repr(prescale),
                postscale=repr(postscale),
                step=step,
                gradients_of_step=len(grouped),
            )
            for position, tensor in zip(group, reduced, strict=True):
                received[position] = tensor
        if tf.inside_function():
            # TensorFlow keeps the order of stateful nodes, and so lists of one name come one after the other: in the
            # rounds of a loop, say.
            with tf.control_dependencies(received):
                ops.rank_op()
        return numbers(received)
