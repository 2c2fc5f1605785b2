# SPDX-License-Identifier: Apache-2.0
"""The operations for NumPy arrays, for programs without a framework: what `horovod.core` exports.

Names, parameters and meaning are those of every framework's package. Arrays may be of any dtype in native.DTYPE_NAMES
(bfloat16 through ml_dtypes) and any strides. Forms ending in _async return a handle for poll and synchronize; forms
ending in _ write the result into the array given. All ranks call the same operations; an allreduce has equal shapes and
dtypes on all ranks, an allgather or alltoall may differ in dimension 0. Errors: core/exceptions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.core.collectives import Collectives
from horovod.core.native import SYNC, Average
from horovod.core.operations import register
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.tensors import NumpyAdapter

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

collectives: Collectives[Any] = Collectives(NumpyAdapter())


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The reduction of `tensor` over all ranks, as new memory: postscale * reduce(prescale * x), divided by the size
    for Average."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return collectives.allreduce(tensor, name, how, False, SYNC).wait()


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allreduce; returns a handle."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return register(collectives.allreduce(tensor, name, how, False))


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """allreduce into `tensor` itself, which is returned."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return collectives.allreduce(tensor, name, how, True, SYNC).wait()


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allreduce_; `tensor` is not to be touched until it is synchronized. Returns a handle."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return register(collectives.allreduce(tensor, name, how, True))


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """allreduce of several tensors as a whole: all of them or none. Returns a list."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return collectives.grouped_allreduce(tensors, name, how, False, SYNC).wait()


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts grouped_allreduce; returns a handle."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return register(collectives.grouped_allreduce(tensors, name, how, False))


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """grouped_allreduce into the tensors themselves, which are returned."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return collectives.grouped_allreduce(tensors, name, how, True, SYNC).wait()


def grouped_allreduce_async_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts grouped_allreduce_; returns a handle."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return register(collectives.grouped_allreduce(tensors, name, how, True))


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """All ranks' tensors joined along dimension 0 in rank order; that dimension may differ by rank."""
    return collectives.allgather(tensor, name, process_set, SYNC).wait()


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts allgather; returns a handle."""
    return register(collectives.allgather(tensor, name, process_set))


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Any, ...]:
    """allgather of several tensors as a whole: all of them or none."""
    return collectives.grouped_allgather(tensors, name, process_set, SYNC).wait()  # type: ignore[no-any-return]


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts grouped_allgather; returns a handle."""
    return register(collectives.grouped_allgather(tensors, name, process_set))


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends splits[r] rows of `tensor` to each rank r, the first rows to the first rank; rows beyond their sum go to
    nobody. Returns the rows that came, in rank order, and as an int32 array how many came from each rank; without
    `splits` every rank gets equally many, and the rows alone are returned."""
    return collectives.alltoall(tensor, splits, name, process_set, SYNC, splits is not None).wait()


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts alltoall; returns a handle, whose result is the pair even without `splits`."""
    return register(collectives.alltoall(tensor, splits, name, process_set))


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the allreduce of `tensor`: they are dealt in rank order, one more to the first ranks where
    they do not come out even."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    return collectives.reducescatter(tensor, name, how, SYNC).wait()


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts reducescatter; returns a handle."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    return register(collectives.reducescatter(tensor, name, how))


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """reducescatter of several tensors as a whole: all of them or none."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    return collectives.grouped_reducescatter(tensors, name, how, SYNC).wait()  # type: ignore[no-any-return]


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts grouped_reducescatter; returns a handle."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    return register(collectives.grouped_reducescatter(tensors, name, how))


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's tensor, as new memory."""
    return collectives.broadcast(tensor, root_rank, name, process_set, False, SYNC).wait()


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts broadcast; returns a handle."""
    return register(collectives.broadcast(tensor, root_rank, name, process_set, False))


def broadcast_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Overwrites `tensor` with the root's and returns it."""
    return collectives.broadcast(tensor, root_rank, name, process_set, True, SYNC).wait()


def broadcast_async_(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts broadcast_; returns a handle."""
    return register(collectives.broadcast(tensor, root_rank, name, process_set, True))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank has called it."""
    collectives.barrier(process_set)
