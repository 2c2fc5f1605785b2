# SPDX-License-Identifier: Apache-2.0
"""The operations for TensorFlow: eagerly, in tf.function, and in graphs of TensorFlow 1 (steps 1 and 3 of a gradient's
way).

Each is a node that the native kernels run (native/shims/tensorflow). What the operations mean stands in
core/collectives.py; here arguments are checked while a graph is built, and errors of the ranks' meeting are raised when
it runs: FailedPreconditionError where the ranks disagree, InvalidArgumentError for what is wrong on this rank,
UnknownError where a rank was lost or has left. A name is the node's, with its scope unless `ignore_name_scope`; eager
calls without one are matched by their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from horovod.core import context as contexts
from horovod.core.collectives import Reduction, checked_root, resolved
from horovod.core.compression import Compressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.joining import join as core_join
from horovod.core.native import OP_NAMES, Adasum, Average, Max, Min, Product, Sum
from horovod.core.process_sets import ProcessSet, global_process_set, number_of
from horovod.core.requests import LOCAL_ERRORS, check_adasum_ranks, refuse
from horovod.tensorflow import xla
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.shim import operations

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]

T = TypeVar("T")


# Names


def _node_name(label: str, name: str | None, tensors: Sequence[Any], ignore_name_scope: bool) -> str | None:
    """The name under which the ranks meet, but for the operation in front. None: by order."""
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    if name is None:
        ends = [tensors[0]] if len(tensors) == 1 else [tensors[0], tensors[-1]] if tensors else []
        camel = "".join(part.capitalize() for part in label.split("_"))
        name = "_".join([f"Horovod{camel}", *(re.sub(r"\W", "_", end.name) for end in ends)])
    unique: str = graph.unique_name(name)
    return unique.rsplit("/", 1)[-1] if ignore_name_scope else unique


def _wire_name(label: str, name: str | None) -> str:
    return "" if name is None else f"{label}.{name}"


def _checked(label: str, name: str | None, process_set: ProcessSet, build: Callable[[], T]) -> T:
    """Runs `build`. What is wrong in an eager call is told to the peers, which wait for it already; what is wrong in a
    graph, when nobody runs it yet, is an error of this rank alone."""
    try:
        if not label.endswith("allreduce") or label.startswith("sparse"):
            xla.refuse(label)
        return build()
    except LOCAL_ERRORS as error:
        if not tf.executing_eagerly() or not contexts.is_initialized():
            raise
        try:
            number = number_of(process_set)
        except InvalidRequestError:
            number = 0
        refuse(contexts.current(), label, name, error, number)


def _tensors(values: Sequence[Any]) -> list[tf.Tensor]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"a grouped operation takes a list of tensors, seen {type(values).__name__}")
    return [tf.convert_to_tensor(value) for value in values]


def check_op(op: int, tensors: Sequence[tf.Tensor], process_set: ProcessSet | None) -> None:
    """Raises where tensors have no such reduction."""
    if op == Adasum:
        check_adasum_ranks((process_set or global_process_set).size() or 1)
    for tensor in tensors:
        if op == Adasum and not tensor.dtype.is_floating:
            raise InvalidRequestError(f"op=Adasum is for floating-point tensors, seen {tensor.dtype.name}")
        if tensor.dtype == tf.bool and op not in (Min, Max):
            raise InvalidRequestError(
                f"a bool tensor has Min (and) and Max (or), seen op={OP_NAMES[op]}\nhint: cast it to an integer"
            )


def _reduction(how: Reduction, tensors: Sequence[tf.Tensor]) -> dict[str, Any]:
    """The attributes of a reducing node."""
    op, prescale, postscale, set_number = resolved(how)
    check_op(op, tensors, how[-1])
    return {"reduce_op": op, "prescale": repr(prescale), "postscale": repr(postscale), "process_set": set_number}


# Allreduce


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """The reduction of `tensor` over all ranks: postscale * reduce(prescale * x), divided by the size for Average,
    which is the default. tf.IndexedSlices stay sparse: the ranks' slices are concatenated (Sum and Average only)."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        return _sparse_allreduce(tensor, name, how, device_sparse, ignore_name_scope)
    return _reduced("allreduce", [tensor], name, how, compression, device_dense, ignore_name_scope)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """allreduce of several tensors, done or failed as a whole. tf.IndexedSlices among them are reduced one by one."""
    if not tensors:
        return []
    how = (op, average, prescale_factor, postscale_factor, process_set)
    results: list[Any] = list(tensors)
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if dense:
        chosen = [tensors[index] for index in dense]
        reduced = _reduced("grouped_allreduce", chosen, name, how, compression, device_dense, ignore_name_scope)
        for index, tensor in zip(dense, reduced, strict=True):
            results[index] = tensor
    for index in sorted(set(range(len(tensors))) - set(dense)):
        own = None if name is None else f"{name}.{index}"
        results[index] = _sparse_allreduce(tensors[index], own, how, device_sparse, ignore_name_scope)
    return results


def _reduced(
    label: str,
    values: Sequence[Any],
    name: str | None,
    how: Reduction,
    compression: type[Compressor],
    device: str,
    ignore_name_scope: bool,
) -> list[Any]:
    def build() -> list[Any]:
        tensors = _tensors(values)
        sent, contexts_ = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
        node = _node_name(label, name, tensors, ignore_name_scope)
        attributes = _reduction(how, sent)
        with tf.device(device or None):
            if xla.is_compiling():
                reduced = xla.reduced(sent, _wire_name(label, node), attributes)
            else:
                reduced = operations().horovod_allreduce(
                    tensors=list(sent), tensor_name=_wire_name(label, node), **attributes
                )
        return [compression.decompress(tensor, ctx) for tensor, ctx in zip(reduced, contexts_, strict=True)]

    return _checked(label, name, how[-1] or global_process_set, build)


def _sparse_allreduce(
    slices: tf.IndexedSlices, name: str | None, how: Reduction, device: str, ignore_name_scope: bool
) -> tf.IndexedSlices:
    op, prescale, postscale, _ = resolved(how)
    if op not in (Average, Sum):
        raise NotImplementedError(f"tf.IndexedSlices can be reduced by Average and Sum, seen op={OP_NAMES[op]}")
    if (prescale, postscale) != (1.0, 1.0):
        raise NotImplementedError("tf.IndexedSlices are reduced without prescale_factor and postscale_factor")
    process_set = how[-1] or global_process_set
    with tf.device(device or None):
        values, indices = _gathered(
            "sparse_allreduce", [slices.values, slices.indices], name, ignore_name_scope, process_set
        )
        if op == Average:
            values = values / tf.cast(size_op(process_set.process_set_id or 0), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_gradient(node: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    """The same allreduce of the gradients."""
    attributes = {key: node.get_attr(key) for key in ("reduce_op", "process_set")}
    factors = {key: node.get_attr(key).decode() for key in ("prescale", "postscale")}
    return list(
        operations().horovod_allreduce(tensors=list(gradients), tensor_name=_derived(node), **attributes, **factors)
    )


def _derived(node: Any) -> str:
    """The name of the operation that the gradient of `node` needs."""
    name = node.get_attr("tensor_name").decode()
    return f"{name}.backward" if name else ""


# Allgather


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """All ranks' tensors, concatenated along dimension 0 in rank order. They may differ in that dimension."""
    return _gathered("allgather", [tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """allgather of several tensors, done or failed as a whole."""
    return _gathered("grouped_allgather", tensors, name, ignore_name_scope, process_set) if tensors else []


def _gathered(
    label: str, values: Sequence[Any], name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> list[tf.Tensor]:
    def build() -> list[tf.Tensor]:
        tensors = _tensors(values)
        _check_rows(label, tensors)
        node = _node_name(label, name, tensors, ignore_name_scope)
        gathered, _ = operations().horovod_allgather(
            tensors=tensors, tensor_name=_wire_name(label, node), process_set=number_of(process_set)
        )
        return list(gathered)

    return _checked(label, name, process_set, build)


def _check_rows(label: str, tensors: Sequence[tf.Tensor]) -> None:
    if any(tensor.shape.rank == 0 for tensor in tensors):
        raise InvalidRequestError(f"{label} goes by rows: expected at least one dimension, seen a 0-d tensor")


@tf.RegisterGradient("HorovodAllgather")
def _allgather_gradient(node: Any, *gradients: tf.Tensor) -> list[tf.Tensor]:
    """The average of the gradients, of which each rank takes its rows."""
    process_set = node.get_attr("process_set")
    averaged = operations().horovod_allreduce(
        tensors=list(gradients[:-1]), tensor_name=_derived(node), process_set=process_set, reduce_op=Average
    )
    rows, rank = node.outputs[-1], _place("rank", process_set)
    first = tf.reduce_sum(rows[:, :rank], axis=1)
    return [whole[first[index] : first[index] + rows[index, rank]] for index, whole in enumerate(averaged)]


# Broadcast


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The root's tensor. `root_rank` is a world rank."""
    return copies_of([tensor], root_rank, name, ignore_name_scope, process_set)[0]


def copies_of(
    values: Sequence[Any],
    root_rank: int,
    name: str | None,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    """The root's tensors, as one operation."""

    def build() -> list[tf.Tensor]:
        tensors = _tensors(values)
        set_number = number_of(process_set)
        node = _node_name("broadcast", name, tensors, ignore_name_scope)
        return list(
            operations().horovod_broadcast(
                tensors=tensors,
                tensor_name=_wire_name("broadcast", node),
                root_rank=checked_root(contexts.current(), root_rank, set_number),
                process_set=set_number,
            )
        )

    return _checked("broadcast", name, process_set, build)


def broadcast_(
    variables: Sequence[tf.Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assigns the root's values to `variables`, all as one operation. Returns the variables' new values; in a graph
    of TensorFlow 1, the operations that assign."""
    variables = list(variables)
    if not variables:
        return []
    values = copies_of([tf.convert_to_tensor(variable) for variable in variables], root_rank, name, False, process_set)
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


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


# Alltoall


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to every member: `splits[i]` of them to member i, evenly many without it. Returns the rows received,
    in member order; with `splits`, also how many came from each (int32)."""

    def build() -> Any:
        sent = tf.convert_to_tensor(tensor)
        _check_rows("alltoall", [sent])
        rows = tf.zeros([0], tf.int64) if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int64)
        if rows.shape.rank not in (None, 1):
            raise InvalidRequestError(f"splits: expected one dimension, seen {rows.shape.rank}")
        node = _node_name("alltoall", name, [sent], ignore_name_scope)
        received, received_splits = operations().horovod_alltoall(
            tensor=sent, splits=rows, tensor_name=_wire_name("alltoall", node), process_set=number_of(process_set)
        )
        return received if splits is None else (received, received_splits)

    return _checked("alltoall", name, process_set, build)


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_gradient(node: Any, gradient: tf.Tensor, _: Any) -> list[Any]:
    """The gradient's rows go back where they came from; zeros for rows that went to nobody."""
    sent, _ = operations().horovod_alltoall(
        tensor=gradient,
        splits=tf.cast(node.outputs[1], tf.int64),
        tensor_name=_derived(node),
        process_set=node.get_attr("process_set"),
    )
    tensor = node.inputs[0]
    missing = tf.shape(tensor)[0] - tf.shape(sent)[0]
    filler = tf.zeros(tf.concat([[missing], tf.shape(tensor)[1:]], 0), tensor.dtype)
    return [tf.concat([sent, filler], 0), None]


# Reducescatter


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """This rank's rows of the allreduce of `tensor`: they are dealt in rank order, one more to the first ranks where
    they do not come out even."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    return _scattered("reducescatter", [tensor], name, how, compression, device_dense, ignore_name_scope)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """reducescatter of several tensors, done or failed as a whole."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    return _scattered("grouped_reducescatter", tensors, None, how, compression, device_dense, False) if tensors else []


def _scattered(
    label: str,
    values: Sequence[Any],
    name: str | None,
    how: Reduction,
    compression: type[Compressor],
    device: str,
    ignore_name_scope: bool,
) -> list[tf.Tensor]:
    def build() -> list[tf.Tensor]:
        tensors = _tensors(values)
        _check_rows(label, tensors)
        sent, contexts_ = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
        node = _node_name(label, name, tensors, ignore_name_scope)
        attributes = _reduction(how, sent)
        with tf.device(device or None):
            rows = operations().horovod_reducescatter(
                tensors=list(sent), tensor_name=_wire_name(label, node), **attributes
            )
        return [compression.decompress(tensor, ctx) for tensor, ctx in zip(rows, contexts_, strict=True)]

    return _checked(label, name, how[-1] or global_process_set, build)


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


# Join, barrier and places


def join() -> tf.Tensor:
    """Says that this rank has no more data: it gives zeros to the others' allreduces until all have joined. The rank
    that came last (int32). See horovod.core.join."""
    if tf.executing_eagerly():
        return tf.constant(core_join(), tf.int32)
    xla.refuse("join")
    return tf.py_function(lambda: np.int32(core_join()), [], tf.int32)


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Returns (in a graph: is a node that is done) when every rank of the set has called it."""
    xla.refuse("barrier")
    node = _node_name("barrier", None, [], False)
    return operations().horovod_barrier(tensor_name=_wire_name("barrier", node), process_set=number_of(process_set))


def _place(what: str, process_set: int = 0, name: str | None = None) -> tf.Tensor:
    xla.refuse(f"{what}_op")
    return operations().horovod_place(what=what, process_set=process_set, name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks of a process set at the time that the node runs (int32)."""
    return _place("size", process_set_id, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host at the time that the node runs (int32)."""
    return _place("local_size", 0, name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process' rank at the time that the node runs (int32)."""
    return _place("rank", 0, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process' rank on its host at the time that the node runs (int32)."""
    return _place("local_rank", 0, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 where this process is a member of the set at the time that the node runs, else 0 (int32)."""
    return _place("included", process_set_id, name)


tf.no_gradient("HorovodPlace")
tf.no_gradient("HorovodBarrier")
