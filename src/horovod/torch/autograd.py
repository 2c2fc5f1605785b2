# SPDX-License-Identifier: Apache-2.0
"""The operations as functions that autograd can differentiate.

Every backward is itself an operation: all ranks run it, under the name of the forward with `.backward` behind it.

    allreduce       the same allreduce of the gradient
    allgather       the average of the gradients, of which each rank takes its rows
    broadcast       the average of the gradients on the root, zeros elsewhere
    alltoall        the gradient's rows go back to the ranks that sent the inputs; zeros for rows sent to no rank
    reducescatter   the allgather of the gradients, times the factors; for Sum also times the number of ranks

The functions gradient_of_... implement this table, for eager execution here and for torch/compiled.py. They can
themselves be differentiated by the same rules (backward with create_graph=True, which a penalty on gradients needs).
The functions take the same parameters as in horovod.torch.mpi_ops.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    "derived",
    "gradient_of_allgather",
    "gradient_of_allreduce",
    "gradient_of_alltoall",
    "gradient_of_broadcast",
    "gradient_of_grouped_allgather",
    "gradient_of_grouped_allreduce",
    "gradient_of_grouped_reducescatter",
    "gradient_of_reducescatter",
]


def derived(name: str | None) -> str | None:
    """The name of the operation that a gradient of `name` needs."""
    return None if name is None else f"{name}.backward"


def _averaged(process_set: ProcessSet | None) -> Reduction:
    return (Average, None, 1.0, 1.0, process_set)


# The operations as a gradient uses them. If the gradient shall be differentiated as well, these are the functions
# below.


def _kept(*gradients: Tensor) -> bool:
    return torch.is_grad_enabled() and any(gradient.requires_grad for gradient in gradients)


def _allreduced(gradient: Tensor, name: str | None, how: Reduction) -> Tensor:
    if _kept(gradient):
        op, average, *rest = how
        return Allreduce.apply(gradient, average, name, op, *rest)
    return collectives.allreduce(gradient, name, how, False, SYNC).wait()


def _grouped_allreduced(gradients: Sequence[Tensor], name: str | None, how: Reduction) -> Sequence[Tensor]:
    if _kept(*gradients):
        op, average, *rest = how
        return GroupedAllreduce.apply(average, name, op, *rest, *gradients)  # type: ignore[no-any-return]
    return collectives.grouped_allreduce(gradients, name, how, False, SYNC).wait()  # type: ignore[no-any-return]


def gradient_of_allreduce(gradient: Tensor, name: str | None, how: Reduction) -> Tensor:
    """`name` and `how` of the forward."""
    return _allreduced(gradient, derived(name), how)


def gradient_of_grouped_allreduce(gradients: Sequence[Tensor], name: str | None, how: Reduction) -> Sequence[Tensor]:
    """As gradient_of_allreduce, of several tensors."""
    return _grouped_allreduced(gradients, derived(name), how)


def gradient_of_allgather(
    gradient: Tensor, rows: Sequence[int], name: str | None, process_set: ProcessSet | None
) -> Tensor:
    """`rows`: how many each rank gave."""
    return _own_rows(_allreduced(gradient, derived(name), _averaged(process_set)), rows, process_set)


def gradient_of_grouped_allgather(
    gradients: Sequence[Tensor], rows: Sequence[Sequence[int]], name: str | None, process_set: ProcessSet | None
) -> list[Tensor]:
    """As gradient_of_allgather, of several tensors."""
    averaged = _grouped_allreduced(gradients, derived(name), _averaged(process_set))
    return [_own_rows(whole, part, process_set) for whole, part in zip(averaged, rows, strict=True)]


def _own_rows(whole: Tensor, rows: Sequence[int], process_set: ProcessSet | None) -> Tensor:
    rank = (process_set or global_process_set).rank() or 0
    return whole.narrow(0, sum(rows[:rank]), rows[rank])


def gradient_of_broadcast(gradient: Tensor, root_rank: int, name: str | None, process_set: ProcessSet | None) -> Tensor:
    """`root_rank` of the forward."""
    averaged = _allreduced(gradient, derived(name), _averaged(process_set))
    # Masked, not made anew: if it is differentiated, that is an operation of all ranks as well.
    return averaged if context.rank() == root_rank else averaged.masked_fill(averaged.new_ones((), dtype=torch.bool), 0)


def gradient_of_alltoall(
    gradient: Tensor, received: Sequence[int], rows: int, name: str | None, process_set: ProcessSet | None
) -> Tensor:
    """`received`: the rows that came from each rank; `rows`: of the forward's input."""
    if _kept(gradient):
        sent, _ = Alltoall.apply(gradient, received, derived(name), process_set)
    else:
        sent = collectives.alltoall(gradient, received, derived(name), process_set, SYNC, with_splits=False).wait()
    if sent.shape[0] < rows:
        sent = torch.cat([sent, sent.new_zeros(rows - sent.shape[0], *sent.shape[1:])])
    return sent


def gradient_of_reducescatter(gradient: Tensor, name: str | None, how: Reduction) -> Tensor:
    """`gradient` of the result; `name` and `how` of the forward."""
    scaled = gradient * _factor(how)
    if _kept(scaled):
        return Allgather.apply(scaled, derived(name), how[4])
    return collectives.allgather(scaled, derived(name), how[4], SYNC).wait()


def gradient_of_grouped_reducescatter(
    gradients: Sequence[Tensor], name: str | None, how: Reduction
) -> tuple[Tensor, ...]:
    """As gradient_of_reducescatter, of several tensors."""
    factor = _factor(how)
    scaled = [gradient * factor for gradient in gradients]
    if _kept(*scaled):
        return GroupedAllgather.apply(derived(name), how[4], *scaled)  # type: ignore[no-any-return]
    return collectives.grouped_allgather(scaled, derived(name), how[4], SYNC).wait()  # type: ignore[no-any-return]


def _factor(how: Reduction) -> float:
    op, _, prescale, postscale, process_set = how
    if op not in (None, Average, Sum):
        raise NotImplementedError(
            f"reducescatter with op={OP_NAMES[op]} has no gradient\nhint: call it on tensor.detach()"
        )
    members = (process_set or global_process_set).size() or 1
    return float(prescale) * float(postscale) * (members if op == Sum else 1)


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> Tensor:
        ctx.name, ctx.how = name, (op, average, prescale_factor, postscale_factor, process_set)
        return collectives.allreduce(tensor, name, ctx.how, False, SYNC).wait()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return gradient_of_allreduce(grad_output, ctx.name, ctx.how), *[None] * 6


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: Tensor,
    ) -> Any:
        ctx.name, ctx.how = name, (op, average, prescale_factor, postscale_factor, process_set)
        return tuple(collectives.grouped_allreduce(tensors, name, ctx.how, False, SYNC).wait())

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        return *[None] * 6, *gradient_of_grouped_allreduce(grad_output, ctx.name, ctx.how)


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        result, ctx.rows = collectives.allgather(tensor, name, process_set, SYNC, with_rows=True).wait()
        ctx.name, ctx.process_set = name, process_set
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return gradient_of_allgather(grad_output, ctx.rows, ctx.name, ctx.process_set), None, None


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.root_rank, ctx.name, ctx.process_set = root_rank, name, process_set
        return collectives.broadcast(tensor, root_rank, name, process_set, False, SYNC).wait()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return gradient_of_broadcast(grad_output, ctx.root_rank, ctx.name, ctx.process_set), None, None, None


class GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> Any:
        results = collectives.grouped_allgather(tensors, name, process_set, SYNC, with_rows=True).wait()
        ctx.name, ctx.process_set, ctx.rows = name, process_set, [rows for _, rows in results]
        return tuple(result for result, _ in results)

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        return None, None, *gradient_of_grouped_allgather(grad_output, ctx.rows, ctx.name, ctx.process_set)


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        result, received = collectives.alltoall(tensor, splits, name, process_set, SYNC).wait()
        ctx.name, ctx.process_set, ctx.rows = name, process_set, tensor.shape[0]
        ctx.received = received.tolist()
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *_: Any) -> Any:
        sent = gradient_of_alltoall(grad_output, ctx.received, ctx.rows, ctx.name, ctx.process_set)
        return sent, None, None, None


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> Tensor:
        ctx.name, ctx.how = name, (op, None, prescale_factor, postscale_factor, process_set)
        return collectives.reducescatter(tensor, name, ctx.how, SYNC).wait()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return gradient_of_reducescatter(grad_output, ctx.name, ctx.how), *[None] * 5


class GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: Tensor,
    ) -> Any:
        ctx.name, ctx.how = name, (op, None, prescale_factor, postscale_factor, process_set)
        return tuple(collectives.grouped_reducescatter(tensors, name, ctx.how, SYNC).wait())

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        return *[None] * 5, *gradient_of_grouped_reducescatter(grad_output, ctx.name, ctx.how)
