# SPDX-License-Identifier: Apache-2.0
"""The operations for PyTorch: views the tensor, calls the core, and makes the blocking forms differentiable.

What an operation means, its names, checks and errors: core/collectives.py. Forms ending in _async return a handle for
poll and synchronize; forms ending in _ write the result into the tensor given. allreduce, allgather and broadcast
without _ or _async can be differentiated: the gradient of an allreduce is the same allreduce of the gradient; of an
allgather and a broadcast it is the average over the ranks, of which each takes its rows or the root takes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from horovod.core.collectives import Reduction
from horovod.core.compression import Compressor
from horovod.core.native import SYNC, Adasum, Average, Max, Min, Product, Sum
from horovod.core.operations import poll, register, synchronize
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch.compression import Compression
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
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "poll",
    "synchronize",
]


def _derived(name: str | None) -> str | None:
    """The name of the operation that a gradient of `name` needs."""
    return None if name is None else f"{name}.backward"


def _differentiated(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)


def _changed(tensor: Any) -> None:
    # The core writes behind autograd's back: a graph that has saved this tensor must notice.
    if isinstance(tensor, Tensor) and not tensor.is_inference():
        increment_version(tensor)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, how: Reduction) -> Tensor:
        ctx.name, ctx.how = name, how
        return collectives.allreduce(tensor, name, how, False, SYNC).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        result = collectives.allreduce(gradient, _derived(ctx.name), ctx.how, False, SYNC).wait()
        return result, None, None


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, how: Reduction, *tensors: Tensor) -> Any:
        ctx.name, ctx.how = name, how
        return tuple(collectives.grouped_allreduce(tensors, name, how, False, SYNC).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        results = collectives.grouped_allreduce(gradients, _derived(ctx.name), ctx.how, False, SYNC).wait()
        return (None, None, *results)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        result, rows = collectives.allgather(tensor, name, process_set, SYNC, with_rows=True).wait()
        ctx.name, ctx.process_set = name, process_set
        ctx.first, ctx.count = sum(rows[: process_set.rank()]), tensor.shape[0]
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        how = (Average, None, 1.0, 1.0, ctx.process_set)
        averaged = collectives.allreduce(gradient, _derived(ctx.name), how, False, SYNC).wait()
        return averaged.narrow(0, ctx.first, ctx.count), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.root_rank, ctx.name, ctx.process_set = root_rank, name, process_set
        return collectives.broadcast(tensor, root_rank, name, process_set, False, SYNC).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        how = (Average, None, 1.0, 1.0, ctx.process_set)
        averaged = collectives.allreduce(gradient, _derived(ctx.name), how, False, SYNC).wait()
        return averaged if ctx.process_set.rank() == ctx.root_rank else torch.zeros_like(averaged), None, None, None


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
    if _differentiated(sent):
        return compression.decompress(_Allreduce.apply(sent, name, how), ctx)
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
    pairs = [compression.compress(tensor) for tensor in tensors]
    sent = [tensor for tensor, _ in pairs]
    how = (op, average, prescale_factor, postscale_factor, process_set)
    if _differentiated(*sent):
        results = _GroupedAllreduce.apply(name, how, *sent)
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
    if _differentiated(tensor):
        return _Allgather.apply(tensor, name, process_set)
    return collectives.allgather(tensor, name, process_set, SYNC).wait()


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts allgather; returns a handle."""
    return register(collectives.allgather(tensor, name, process_set))


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensor of world rank `root_rank`, as new memory."""
    if _differentiated(tensor):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
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
    collectives.barrier(process_set)
