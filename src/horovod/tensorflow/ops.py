# SPDX-License-Identifier: Apache-2.0
"""The operations for TensorFlow (steps 1 and 3 of a gradient's way).

They work eagerly, in tf.function, and in graphs of TensorFlow 1.

Each is a node that the native kernels run (native/shims/tensorflow). What the operations mean stands in
core/collectives.py; arguments are checked while a graph is built (tensors.py), and errors of the ranks' meeting are
raised when it runs: FailedPreconditionError if the ranks disagree, InvalidArgumentError for what is wrong on this
rank, UnknownError if a rank was lost or has left. A name is the node's, with its scope unless `ignore_name_scope`;
eager calls without one are matched by their order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.core import context as contexts
from horovod.core.collectives import Reduction, resolved
from horovod.core.compression import Compressor, check_compression, compressed
from horovod.core.exceptions import InvalidRequestError
from horovod.core.joining import join as core_join
from horovod.core.native import (
    ALLREDUCE,
    OP_NAMES,
    REDUCESCATTER,
    Adasum,
    Average,
    BitAnd,
    BitOr,
    BitXor,
    Max,
    Min,
    Product,
    Sum,
)
from horovod.core.process_sets import ProcessSet, checked_root, global_process_set, number_of
from horovod.core.requests import check_reduction
from horovod.core.wording import shown
from horovod.tensorflow import autograd, xla
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.rank_ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from horovod.tensorflow.shim import operations
from horovod.tensorflow.tensors import (
    as_pairs,
    assignable,
    check_rows,
    checked,
    node_name,
    reduction_attributes,
    sendable,
    tell,
    wire_name,
)

__all__ = [
    "Adasum",
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
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


def _is_empty(given: Any) -> bool:
    # A tensor in place of a list has no truth value. Anything but a list is refused later, so that the peers are told.
    return isinstance(given, (list, tuple)) and not given


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
    """Reduces `tensor` over all ranks.

    The result is postscale * reduce(prescale * x), divided by the size for Average, which is the default.
    tf.IndexedSlices stay sparse: the ranks' slices are concatenated (Sum and Average only).
    """
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
    if _is_empty(tensors):
        return []
    how = (op, average, prescale_factor, postscale_factor, process_set)
    if not isinstance(tensors, (list, tuple)):
        # It tells the peers.
        return _reduced("grouped_allreduce", tensors, name, how, compression, device_dense, ignore_name_scope)
    results: list[Any] = list(tensors)
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if len(dense) < len(tensors):  # before the dense ones are sent
        _checked_sparse_op("grouped_allreduce", name, how)
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
        tensors = sendable(values)
        check_compression(compression)
        peers = functools.partial(tell, label, name, how[-1] or global_process_set)
        sent, contexts_ = zip(*compressed(tensors, compression, peers), strict=True)
        node = node_name(label, name, tensors, ignore_name_scope)
        pairs, numbers = as_pairs(sent, how[0])
        attributes = reduction_attributes(how, pairs, ALLREDUCE)
        with tf.device(device or None):
            reduced = numbers(autograd.allreduced(pairs, wire_name(label, node), attributes))
        return [compression.decompress(tensor, ctx) for tensor, ctx in zip(reduced, contexts_, strict=True)]

    return checked(label, name, how[-1] or global_process_set, build)


def _sparse_allreduce(
    slices: tf.IndexedSlices, name: str | None, how: Reduction, device: str, ignore_name_scope: bool
) -> tf.IndexedSlices:
    process_set = how[-1] or global_process_set
    op = _checked_sparse_op("sparse_allreduce", name, how)
    contexts.note_gradients()
    with tf.device(device or None):
        values, indices = _gathered(
            "sparse_allreduce", [slices.values, slices.indices], name, ignore_name_scope, process_set
        )
        if op == Average:
            # Of integers the result is floating-point, unlike a dense Average.
            values = values / tf.cast(size_op(process_set.process_set_id or 0), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


_AS_DENSE = "hint: tf.convert_to_tensor makes it dense; for gradients, sparse_as_dense=True does"


def _checked_sparse_op(label: str, name: str | None, how: Reduction) -> int:
    """The op. Raises NotImplementedError, of which the peers are told, if sparse tensors have no such reduction."""

    def known_op() -> int:
        op, prescale, postscale, _ = resolved(how)
        check_reduction(ALLREDUCE, op, [])
        if op not in (Average, Sum):
            raise NotImplementedError(
                f"tf.IndexedSlices can be reduced by Average and Sum, got op={OP_NAMES[op]}\n{_AS_DENSE}"
            )
        if (prescale, postscale) != (1.0, 1.0):
            raise NotImplementedError(
                "tf.IndexedSlices are reduced without prescale_factor and postscale_factor\n" + _AS_DENSE
            )
        return op

    return checked(label, name, how[-1] or global_process_set, known_op)


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
    if _is_empty(tensors):
        return []
    return _gathered("grouped_allgather", tensors, name, ignore_name_scope, process_set)


def _gathered(
    label: str, values: Sequence[Any], name: str | None, ignore_name_scope: bool, process_set: ProcessSet
) -> list[tf.Tensor]:
    def build() -> list[tf.Tensor]:
        tensors = sendable(values)
        check_rows(label, tensors)
        node = node_name(label, name, tensors, ignore_name_scope)
        pairs, numbers = as_pairs(tensors)
        gathered, _ = operations().horovod_allgather(
            tensors=pairs, tensor_name=wire_name(label, node), process_set=number_of(process_set)
        )
        return numbers(gathered)

    return checked(label, name, process_set, build)


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
        tensors = sendable(values)
        set_number = number_of(process_set)
        node = node_name("broadcast", name, tensors, ignore_name_scope)
        pairs, numbers = as_pairs(tensors)
        return numbers(
            operations().horovod_broadcast(
                tensors=pairs,
                tensor_name=wire_name("broadcast", node),
                root_rank=checked_root(contexts.current(), root_rank, set_number),
                process_set=set_number,
            )
        )

    return checked("broadcast", name, process_set, build)


def broadcast_(
    variables: Sequence[tf.Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assigns the root's values to `variables`, all as one operation.

    Returns the variables' new values; in a graph of TensorFlow 1, the operations that assign.
    """
    if _is_empty(variables):
        return []
    plain = checked("broadcast", name, process_set, lambda: assignable(variables))
    values = copies_of([tf.convert_to_tensor(variable) for variable in plain], root_rank, name, False, process_set)
    return [variable.assign(value) for variable, value in zip(plain, values, strict=True)]


# Alltoall


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows to every member: `splits[i]` of them to member i, evenly many without it.

    Returns the rows received, in member order; with `splits`, also how many came from each (int32).
    """

    def build() -> Any:
        (sent,) = sendable([tensor])
        check_rows("alltoall", [sent])
        try:
            rows = tf.zeros([0], tf.int64) if splits is None else tf.convert_to_tensor(splits)
        except (TypeError, ValueError):
            raise TypeError(f"splits={shown(splits)}: expected a list of integers") from None
        if not rows.dtype.is_integer:
            raise TypeError(f"splits: expected integers, got {rows.dtype.name}")
        if rows.shape.rank not in (None, 1):
            raise InvalidRequestError(f"splits: expected a one-dimensional tensor, got shape {list(rows.shape)}")
        rows = tf.cast(rows, tf.int64)
        node = node_name("alltoall", name, [sent], ignore_name_scope)
        (pairs,), numbers = as_pairs([sent])
        received, received_splits = operations().horovod_alltoall(
            tensor=pairs, splits=rows, tensor_name=wire_name("alltoall", node), process_set=number_of(process_set)
        )
        (received,) = numbers([received])
        return received if splits is None else (received, received_splits)

    return checked("alltoall", name, process_set, build)


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
    """Gives this rank its rows of the allreduce of `tensor`.

    They are dealt in rank order, one more to the first ranks if they do not come out even.
    """
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
    name: str | None = None,
) -> list[tf.Tensor]:
    """reducescatter of several tensors, done or failed as a whole."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    if _is_empty(tensors):
        return []
    return _scattered("grouped_reducescatter", tensors, name, how, compression, device_dense, False)


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
        tensors = sendable(values)
        check_rows(label, tensors)
        check_compression(compression)
        peers = functools.partial(tell, label, name, how[-1] or global_process_set)
        sent, contexts_ = zip(*compressed(tensors, compression, peers), strict=True)
        node = node_name(label, name, tensors, ignore_name_scope)
        pairs, numbers = as_pairs(sent, how[0])
        attributes = reduction_attributes(how, pairs, REDUCESCATTER)
        with tf.device(device or None):
            rows = operations().horovod_reducescatter(tensors=pairs, tensor_name=wire_name(label, node), **attributes)
        rows = numbers(rows)
        return [compression.decompress(tensor, ctx) for tensor, ctx in zip(rows, contexts_, strict=True)]

    return checked(label, name, how[-1] or global_process_set, build)


# Join and barrier


def join() -> tf.Tensor:
    """Says that this rank has no more data: it gives zeros to the others' allreduces until all have joined.

    The rank that came last (int32). See horovod.core.join.
    """
    if tf.executing_eagerly():
        return tf.constant(core_join(), tf.int32)
    xla.refuse("join")
    return tf.py_function(lambda: np.int32(core_join()), [], tf.int32)


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Returns (in a graph: is a node that is done) when every rank of the set has called it."""

    def build() -> Any:
        node = node_name("barrier", None, [], False)
        return operations().horovod_barrier(tensor_name=wire_name("barrier", node), process_set=number_of(process_set))

    return checked("barrier", None, process_set, build)
