# SPDX-License-Identifier: Apache-2.0
"""The operations for PyTorch: core/operations_api.py over tensors, whose blocking forms can be differentiated.

Forms without _async and without _ can be differentiated (torch/autograd.py). Forms without _async may stand in a
function that torch.compile compiles (torch/compiled.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from horovod.core.collectives import Reduction
from horovod.core.native import Adasum, Average, BitAnd, BitOr, BitXor, Max, Min, Product, Sum
from horovod.core.operations import poll, synchronize
from horovod.core.operations_api import Operations
from horovod.core.process_sets import ProcessSet
from horovod.torch import compiled
from horovod.torch.autograd import (
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
from horovod.torch.tensors import TorchAdapter

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


def _written(tensor: Tensor, result: Tensor) -> Tensor:
    """Writes in place without autograd noticing, as in eager mode."""
    with torch.no_grad():
        return tensor.copy_(result)


class TorchOperations(Operations[Tensor]):
    """The operations over PyTorch's tensors."""

    def _reduce(self, tensor: Tensor, name: str | None, how: Reduction) -> Tensor:
        if is_compiling():
            return compiled.allreduce([tensor], False, name, how)[0]
        if _differentiated(tensor):
            op, average, *rest = how
            return Allreduce.apply(tensor, average, name, op, *rest)
        return super()._reduce(tensor, name, how)

    def _reduce_into(self, tensor: Tensor, name: str | None, how: Reduction) -> Tensor:
        if is_compiling():
            return _written(tensor, compiled.allreduce([tensor], False, name, how)[0])
        try:  # as _overwritten, but each look at the tensor costs time here
            increment_version(tensor)
        except (RuntimeError, TypeError):
            if isinstance(tensor, Tensor) and not tensor.is_inference():
                raise
        return self.collectives.run_allreduce(tensor, name, how, True)  # as super()

    def _reduce_group(self, tensors: Sequence[Tensor], name: str | None, how: Reduction) -> Sequence[Tensor]:
        if is_compiling():
            return compiled.allreduce(tensors, True, name, how)
        if self._is_group(tensors) and _differentiated(*tensors):
            op, average, *rest = how
            return GroupedAllreduce.apply(average, name, op, *rest, *tensors)  # type: ignore[no-any-return]
        return super()._reduce_group(tensors, name, how)

    def _reduce_group_into(self, tensors: Sequence[Tensor], name: str | None, how: Reduction) -> tuple[Tensor, ...]:
        if is_compiling():
            results = compiled.allreduce(tensors, True, name, how)
            return tuple(_written(tensor, result) for tensor, result in zip(tensors, results, strict=True))
        return super()._reduce_group_into(tensors, name, how)

    def _gather(self, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        if is_compiling():
            return compiled.allgather([tensor], False, name, process_set)[0]
        if _differentiated(tensor):
            return Allgather.apply(tensor, name, process_set)
        return super()._gather(tensor, name, process_set)

    def _gather_group(self, tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> tuple[Tensor, ...]:
        if is_compiling():
            return tuple(compiled.allgather(tensors, True, name, process_set))
        if self._is_group(tensors) and _differentiated(*tensors):
            return GroupedAllgather.apply(name, process_set, *tensors)  # type: ignore[no-any-return]
        return super()._gather_group(tensors, name, process_set)

    def _exchange(self, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        if is_compiling() or _differentiated(tensor):
            exchange = compiled.alltoall if is_compiling() else Alltoall.apply
            result, received = exchange(tensor, splits, name, process_set)
            return result if splits is None else (result, received)
        return super()._exchange(tensor, splits, name, process_set)

    def _scatter(self, tensor: Tensor, name: str | None, how: Reduction) -> Tensor:
        if is_compiling():
            return compiled.reducescatter([tensor], False, name, how)[0]
        if _differentiated(tensor):
            op, _, prescale, postscale, process_set = how
            return Reducescatter.apply(tensor, name, op, process_set, prescale, postscale)
        return super()._scatter(tensor, name, how)

    def _scatter_group(self, tensors: Sequence[Tensor], name: str | None, how: Reduction) -> Sequence[Tensor]:
        if is_compiling():
            return compiled.reducescatter(tensors, True, name, how)
        if self._is_group(tensors) and _differentiated(*tensors):
            op, _, prescale, postscale, process_set = how
            return GroupedReducescatter.apply(  # type: ignore[no-any-return]
                name, op, process_set, prescale, postscale, *tensors
            )
        return super()._scatter_group(tensors, name, how)

    def _copy(self, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        if is_compiling():
            return compiled.broadcast(tensor, root_rank, name, process_set)
        if _differentiated(tensor):
            return Broadcast.apply(tensor, root_rank, name, process_set)
        return super()._copy(tensor, root_rank, name, process_set)

    def _copy_into(self, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        if is_compiling():
            return _written(tensor, compiled.broadcast(tensor, root_rank, name, process_set))
        return super()._copy_into(tensor, root_rank, name, process_set)

    def _meet(self, process_set: ProcessSet) -> None:
        if is_compiling():
            compiled.barrier(process_set)
        else:
            super()._meet(process_set)

    def _refuse(self, label: str, name: str | None, why: str, process_set: ProcessSet) -> None:
        if is_compiling():
            # When it runs: a compiler hides what is raised while it traces.
            compiled.refuse(label, name, why, process_set)
        else:
            super()._refuse(label, name, why, process_set)

    def _overwritten(self, *tensors: Tensor) -> None:
        # The core writes behind autograd's back: a graph that has saved this tensor must notice.
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not tensor.is_inference():
                increment_version(tensor)

    def _is_group(self, tensors: Any) -> bool:
        return isinstance(tensors, (list, tuple)) and all(isinstance(tensor, Tensor) for tensor in tensors)


operations = TorchOperations(TorchAdapter())

allreduce = operations.allreduce
allreduce_async = operations.allreduce_async
allreduce_ = operations.allreduce_
allreduce_async_ = operations.allreduce_async_
grouped_allreduce = operations.grouped_allreduce
grouped_allreduce_async = operations.grouped_allreduce_async
grouped_allreduce_ = operations.grouped_allreduce_
grouped_allreduce_async_ = operations.grouped_allreduce_async_
allgather = operations.allgather
allgather_async = operations.allgather_async
grouped_allgather = operations.grouped_allgather
grouped_allgather_async = operations.grouped_allgather_async
alltoall = operations.alltoall
alltoall_async = operations.alltoall_async
reducescatter = operations.reducescatter
reducescatter_async = operations.reducescatter_async
grouped_reducescatter = operations.grouped_reducescatter
grouped_reducescatter_async = operations.grouped_reducescatter_async
broadcast = operations.broadcast
broadcast_async = operations.broadcast_async
broadcast_ = operations.broadcast_
broadcast_async_ = operations.broadcast_async_
barrier = operations.barrier
