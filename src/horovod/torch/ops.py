# SPDX-License-Identifier: Apache-2.0
"""The operations for PyTorch: views the tensor, calls the core, and makes the blocking forms differentiable.

What an operation means, its names, checks and errors: core/collectives.py. Forms ending in _async return a handle for
poll and synchronize; forms ending in _ write the result into the tensor given. Forms without either can be
differentiated (torch/gradients.py). Forms without _async may stand in a function that torch.compile compiles
(torch/compiled.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from horovod.core.compression import Compressor
from horovod.core.native import SYNC, Adasum, Average, Max, Min, Product, Sum
from horovod.core.operations import poll, register, synchronize
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch import compiled
from horovod.torch.compression import Compression
from horovod.torch.gradients import (
    Allgather,
    Allreduce,
    Alltoall,
    Broadcast,
    GroupedAllgather,
    GroupedAllreduce,
    GroupedReducescatter,
    Reducescatter,
)
from horovod.torch.sparse import sparse_allreduce_async
from horovod.torch.tensors import collectives

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
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
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]


def _differentiated(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)


def _is_group(tensors: Any) -> bool:
    # Anything else is the core's to refuse, so that the peers are told.
    return isinstance(tensors, (list, tuple)) and all(isinstance(tensor, Tensor) for tensor in tensors)


def _changed(tensor: Any) -> None:
    # The core writes behind autograd's back: a graph that has saved this tensor must notice.
    if isinstance(tensor, Tensor) and not tensor.is_inference():
        increment_version(tensor)


def _overwritten(tensor: Tensor, result: Tensor) -> Tensor:
    """How a compiled function writes in place: as eagerly, behind autograd's back."""
    with torch.no_grad():
        return tensor.copy_(result)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The reduction of `tensor` over all ranks, as new memory: postscale * reduce(prescale * x), divided by the size
    for Average, which is the default. Raises HorovodInternalError where the ranks disagree or one is lost, ValueError
    for what is wrong on this rank."""
    sent, ctx = compression.compress(tensor)
    how = (op, average, prescale_factor, postscale_factor, process_set)
    if is_compiling():
        return compression.decompress(compiled.allreduce([sent], False, name, how)[0], ctx)
    if _differentiated(sent):
        result = Allreduce.apply(sent, average, name, op, prescale_factor, postscale_factor, process_set)
        return compression.decompress(result, ctx)
    return compression.decompress(collectives.allreduce(sent, name, how, False, SYNC).wait(), ctx)


def allreduce_async(
    tensor: Tensor,
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
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """allreduce into `tensor` itself, which is returned."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    if is_compiling():
        return _overwritten(tensor, compiled.allreduce([tensor], False, name, how)[0])
    operation = collectives.allreduce(tensor, name, how, True, SYNC)
    _changed(tensor)
    return operation.wait()


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts allreduce_; `tensor` is not to be touched until it is synchronized. Returns a handle."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    operation = collectives.allreduce(tensor, name, how, True)
    _changed(tensor)
    return register(operation)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """allreduce of several tensors as a whole: all of them or none."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    if not _is_group(tensors):
        return collectives.grouped_allreduce(tensors, name, how, False, SYNC).wait()  # type: ignore[no-any-return]
    pairs = [compression.compress(tensor) for tensor in tensors]
    sent = [tensor for tensor, _ in pairs]
    if is_compiling():
        results = compiled.allreduce(sent, True, name, how)
    elif _differentiated(*sent):
        results = GroupedAllreduce.apply(average, name, op, prescale_factor, postscale_factor, process_set, *sent)
    else:
        results = collectives.grouped_allreduce(sent, name, how, False, SYNC).wait()
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
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
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[Tensor, ...]:
    """grouped_allreduce into the tensors themselves, which are returned."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    if is_compiling():
        results = compiled.allreduce(tensors, True, name, how)
        return tuple(_overwritten(tensor, result) for tensor, result in zip(tensors, results, strict=True))
    operation = collectives.grouped_allreduce(tensors, name, how, True, SYNC)
    for tensor in tensors:
        _changed(tensor)
    return operation.wait()  # type: ignore[no-any-return]


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts grouped_allreduce_; returns a handle."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    operation = collectives.grouped_allreduce(tensors, name, how, True)
    for tensor in tensors:
        _changed(tensor)
    return register(operation)


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """All ranks' tensors joined along dimension 0 in rank order; that dimension may differ by rank."""
    if is_compiling():
        return compiled.allgather([tensor], False, name, process_set)[0]
    if _differentiated(tensor):
        return Allgather.apply(tensor, name, process_set)
    return collectives.allgather(tensor, name, process_set, SYNC).wait()


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts allgather; returns a handle."""
    return register(collectives.allgather(tensor, name, process_set))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[Tensor, ...]:
    """allgather of several tensors as a whole: all of them or none."""
    if is_compiling():
        return tuple(compiled.allgather(tensors, True, name, process_set))
    if _is_group(tensors) and _differentiated(*tensors):
        return GroupedAllgather.apply(name, process_set, *tensors)  # type: ignore[no-any-return]
    return collectives.grouped_allgather(tensors, name, process_set, SYNC).wait()  # type: ignore[no-any-return]


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts grouped_allgather; returns a handle."""
    return register(collectives.grouped_allgather(tensors, name, process_set))


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends splits[r] rows of `tensor` to each rank r, the first rows to the first rank; rows beyond their sum go to
    nobody. `splits` is a list of ints or an int32 tensor. Returns the rows that came, in rank order, and as an int32
    tensor how many came from each rank; without `splits` every rank gets equally many, and the rows alone are
    returned."""
    if is_compiling() or _differentiated(tensor):
        exchange = compiled.alltoall if is_compiling() else Alltoall.apply
        result, received = exchange(tensor, splits, name, process_set)
        return result if splits is None else (result, received)
    return collectives.alltoall(tensor, splits, name, process_set, SYNC, splits is not None).wait()


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts alltoall; returns a handle, whose result is the pair even without `splits`."""
    return register(collectives.alltoall(tensor, splits, name, process_set))


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """This rank's rows of the allreduce of `tensor`: they are dealt in rank order, one more to the first ranks where
    they do not come out even."""
    sent, ctx = compression.compress(tensor)
    how = (op, None, prescale_factor, postscale_factor, process_set)
    if is_compiling():
        return compression.decompress(compiled.reducescatter([sent], False, name, how)[0], ctx)
    if _differentiated(sent):
        result = Reducescatter.apply(sent, name, op, process_set, prescale_factor, postscale_factor)
        return compression.decompress(result, ctx)
    return compression.decompress(collectives.reducescatter(sent, name, how, SYNC).wait(), ctx)


def reducescatter_async(
    tensor: Tensor,
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
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """reducescatter of several tensors as a whole: all of them or none."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    if not _is_group(tensors):
        return collectives.grouped_reducescatter(tensors, name, how, SYNC).wait()  # type: ignore[no-any-return]
    pairs = [compression.compress(tensor) for tensor in tensors]
    sent = [tensor for tensor, _ in pairs]
    if is_compiling():
        results = compiled.reducescatter(sent, True, name, how)
    elif _differentiated(*sent):
        results = GroupedReducescatter.apply(name, op, process_set, prescale_factor, postscale_factor, *sent)
    else:
        results = collectives.grouped_reducescatter(sent, name, how, SYNC).wait()
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
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
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensor of world rank `root_rank`, as new memory."""
    if is_compiling():
        return compiled.broadcast(tensor, root_rank, name, process_set)
    if _differentiated(tensor):
        return Broadcast.apply(tensor, root_rank, name, process_set)
    return collectives.broadcast(tensor, root_rank, name, process_set, False, SYNC).wait()


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts broadcast; returns a handle."""
    return register(collectives.broadcast(tensor, root_rank, name, process_set, False))


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrites `tensor` with the root's and returns it."""
    if is_compiling():
        return _overwritten(tensor, compiled.broadcast(tensor, root_rank, name, process_set))
    operation = collectives.broadcast(tensor, root_rank, name, process_set, True, SYNC)
    _changed(tensor)
    return operation.wait()


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts broadcast_; returns a handle."""
    operation = collectives.broadcast(tensor, root_rank, name, process_set, True)
    _changed(tensor)
    return register(operation)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank has called it."""
    if is_compiling():
        compiled.barrier(process_set)
    else:
        collectives.barrier(process_set)
