# SPDX-License-Identifier: Apache-2.0
"""The operations as functions that autograd can differentiate. Every backward is itself an operation: all ranks run it,
under the name of the forward with `.backward` behind it.

    allreduce       the same allreduce of the gradient
    allgather       the average of the gradients, of which each rank takes its rows
    broadcast       the average of the gradients on the root, zeros elsewhere
    alltoall        the gradient's rows go back where they came from; zeros for rows that went to nobody
    reducescatter   the allgather of the gradients, times the factors; for Sum also times the number of ranks
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from horovod.core import context
from horovod.core.collectives import Reduction
from horovod.core.native import OP_NAMES, SYNC, Average, Sum
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch.tensors import collectives

__all__ = [
    "Allgather",
    "Allreduce",
    "Alltoall",
    "Broadcast",
    "GroupedAllgather",
    "GroupedAllreduce",
    "GroupedReducescatter",
    "Reducescatter",
]


def _derived(name: str | None) -> str | None:
    """The name of the operation that a gradient of `name` needs."""
    return None if name is None else f"{name}.backward"


def _averaged(process_set: ProcessSet) -> Reduction:
    return (Average, None, 1.0, 1.0, process_set)


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, how: Reduction) -> Tensor:
        ctx.name, ctx.how = name, how
        return collectives.allreduce(tensor, name, how, False, SYNC).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        result = collectives.allreduce(gradient, _derived(ctx.name), ctx.how, False, SYNC).wait()
        return result, None, None


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, how: Reduction, *tensors: Tensor) -> Any:
        ctx.name, ctx.how = name, how
        return tuple(collectives.grouped_allreduce(tensors, name, how, False, SYNC).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        results = collectives.grouped_allreduce(gradients, _derived(ctx.name), ctx.how, False, SYNC).wait()
        return (None, None, *results)


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        result, rows = collectives.allgather(tensor, name, process_set, SYNC, with_rows=True).wait()
        ctx.name, ctx.process_set = name, process_set
        ctx.first, ctx.count = sum(rows[: process_set.rank()]), tensor.shape[0]
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        how = _averaged(ctx.process_set)
        averaged = collectives.allreduce(gradient, _derived(ctx.name), how, False, SYNC).wait()
        return averaged.narrow(0, ctx.first, ctx.count), None, None


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.root_rank, ctx.name, ctx.process_set = root_rank, name, process_set
        return collectives.broadcast(tensor, root_rank, name, process_set, False, SYNC).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        how = _averaged(ctx.process_set)
        averaged = collectives.allreduce(gradient, _derived(ctx.name), how, False, SYNC).wait()
        return averaged if context.rank() == ctx.root_rank else torch.zeros_like(averaged), None, None, None


class GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> Any:
        results = collectives.grouped_allgather(tensors, name, process_set, SYNC, with_rows=True).wait()
        rank = process_set.rank()
        ctx.name, ctx.process_set = name, process_set
        ctx.ranges = [(sum(rows[:rank]), tensor.shape[0]) for tensor, (_, rows) in zip(tensors, results, strict=True)]
        return tuple(result for result, _ in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        how = _averaged(ctx.process_set)
        averaged = collectives.grouped_allreduce(gradients, _derived(ctx.name), how, False, SYNC).wait()
        return None, None, *(whole.narrow(0, *part) for whole, part in zip(averaged, ctx.ranges, strict=True))


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        result, received = collectives.alltoall(tensor, splits, name, process_set, SYNC).wait()
        ctx.name, ctx.process_set, ctx.rows = name, process_set, tensor.shape[0]
        ctx.received = received.tolist()
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        sent = collectives.alltoall(
            gradient, ctx.received, _derived(ctx.name), ctx.process_set, SYNC, with_splits=False
        ).wait()
        if sent.shape[0] < ctx.rows:
            sent = torch.cat([sent, sent.new_zeros(ctx.rows - sent.shape[0], *sent.shape[1:])])
        return sent, None, None, None


def _factor(how: Reduction) -> float:
    op, _, prescale, postscale, process_set = how
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"reducescatter with op={OP_NAMES[op or 0]} has no gradient\nhint: call it on tensor.detach()"
        )
    members = (process_set or global_process_set).size() or 1
    return prescale * postscale * (members if op == Sum else 1)


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, how: Reduction) -> Tensor:
        ctx.name, ctx.how = name, how
        return collectives.reducescatter(tensor, name, how, SYNC).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        scaled = gradient * _factor(ctx.how)
        return collectives.allgather(scaled, _derived(ctx.name), ctx.how[4], SYNC).wait(), None, None


class GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, how: Reduction, *tensors: Tensor) -> Any:
        ctx.name, ctx.how = name, how
        return tuple(collectives.grouped_reducescatter(tensors, name, how, SYNC).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        factor = _factor(ctx.how)
        scaled = [gradient * factor for gradient in gradients]
        results = collectives.grouped_allgather(scaled, _derived(ctx.name), ctx.how[4], SYNC).wait()
        return None, None, *results
