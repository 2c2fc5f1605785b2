# SPDX-License-Identifier: Apache-2.0
"""The gradients of the operations themselves, for scripts that differentiate through one.

Each is a collective in turn, so every rank must take it. (The ranks' average of a model's gradients: gradient_list.py.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.core.native import OP_NAMES, Average, Sum
from horovod.tensorflow import xla
from horovod.tensorflow.rank_ops import rank_op, rank_within, size_op
from horovod.tensorflow.shim import operations
from horovod.tensorflow.tensors import among_concurrent, unscoped_name

__all__ = ["allreduced"]


def allreduced(tensors: Sequence[Any], name: str, attributes: dict[str, Any]) -> list[Any]:
    """The node of an allreduce of `tensors` as a whole, or what XLA has in its place, with its gradient."""
    if xla.is_compiling():
        return _compiled(tensors, name, attributes)
    return list(operations().horovod_allreduce(tensors=list(tensors), tensor_name=name, **attributes))


def _compiled(tensors: Sequence[Any], name: str, attributes: dict[str, Any]) -> list[Any]:
    # XLA compiles the backward pass of what it compiles, also if TensorFlow traces it later, on its own.
    return xla.reduced(
        tensors, name, attributes, lambda gradients: _compiled(gradients, _name_of_gradient(name), attributes)
    )


def _derived(node: Any) -> str:
    """The name of the operation that the gradient of `node` needs."""
    return _name_of_gradient(node.get_attr("tensor_name").decode())


def _name_of_gradient(name: str) -> str:
    if not name:
        return ""
    name = f"{name}.backward"
    if tf.executing_eagerly():
        return name
    # An output of a node may be differentiated alone, so a node may have several gradients, which run at one time.
    return among_concurrent(unscoped_name(tf.compat.v1.get_default_graph(), name))


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_gradient(node: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    """The same allreduce of the gradients."""
    attributes = {key: node.get_attr(key) for key in ("reduce_op", "process_set")}
    factors = {key: node.get_attr(key).decode() for key in ("prescale", "postscale")}
    return allreduced(gradients, _derived(node), {**attributes, **factors})


@tf.RegisterGradient("HorovodReduceGradient")
def _reduced_gradient_gradient(node: Any, *gradients: tf.Tensor) -> list[Any]:
    """As of an allreduce: for second derivatives through a distributed tape. None for the anchor."""
    return [None, *_allreduce_gradient(node, *gradients)]


@tf.RegisterGradient("HorovodAllgather")
def _allgather_gradient(node: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    """The average of the gradients, of which each rank takes its rows."""
    process_set = node.get_attr("process_set")
    averaged = operations().horovod_allreduce(
        tensors=list(gradients[:-1]), tensor_name=_derived(node), process_set=process_set, reduce_op=Average
    )
    rows, rank = node.outputs[-1], rank_within(process_set)
    first = tf.reduce_sum(rows[:, :rank], axis=1)
    return [whole[first[index] : first[index] + rows[index, rank]] for index, whole in enumerate(averaged)]


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_gradient(node: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    """The average of the gradients on the root, zeros elsewhere."""
    averaged = operations().horovod_allreduce(
        tensors=list(gradients),
        tensor_name=_derived(node),
        process_set=node.get_attr("process_set"),
        reduce_op=Average,
    )
    is_root = tf.equal(rank_op(), node.get_attr("root_rank"))
    return [tf.where(is_root, whole, tf.zeros_like(whole)) for whole in averaged]


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_gradient(node: Any, gradient: tf.Tensor, _: Any) -> list[Any]:
    """The gradient's rows go back where they came from; zeros for rows that were sent to no rank."""
    sent, _ = operations().horovod_alltoall(
        tensor=gradient,
        splits=tf.cast(node.outputs[1], tf.int64),
        tensor_name=_derived(node),
        process_set=node.get_attr("process_set"),
    )
    tensor = node.inputs[0]
    missing = tf.shape(tensor)[0] - tf.shape(sent)[0]
    # The gradient that comes in may have another floating type than the input; what goes on has the input's.
    filler = tf.zeros(tf.concat([[missing], tf.shape(tensor)[1:]], 0), sent.dtype)
    return [tf.cast(tf.concat([sent, filler], 0), tensor.dtype), None]


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter_gradient(node: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    """The allgather of the gradients, times the factors; for Sum also times the number of ranks."""
    op, process_set = node.get_attr("reduce_op"), node.get_attr("process_set")
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"reducescatter with op={OP_NAMES[op]} has no gradient\nhint: call it on tf.stop_gradient(tensor)"
        )
    factor = float(node.get_attr("prescale")) * float(node.get_attr("postscale"))
    scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
    if op == Sum:
        members = size_op(process_set)
        scaled = [gradient * tf.cast(members, gradient.dtype) for gradient in scaled]
    gathered, _ = operations().horovod_allgather(tensors=scaled, tensor_name=_derived(node), process_set=process_set)
    return list(gathered)


tf.no_gradient("HorovodPlace")
tf.no_gradient("HorovodBarrier")
