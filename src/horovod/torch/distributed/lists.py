# SPDX-License-Identifier: Apache-2.0
"""The collectives that take lists of tensors, one for each rank of the group.

The list travels as one flat tensor. It is copied once, or not at all if its tensors follow each other in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import AllreduceCoalescedOptions, ReduceScatterOptions, Work

from horovod.core.operations import Operation
from horovod.torch.distributed.base import GroupBase, part_of
from horovod.torch.distributed.errors import told_as_torch
from horovod.torch.distributed.memory import Target, as_moved, as_row, flat, moved_count, one_block
from horovod.torch.tensors import collectives

__all__ = ["ListCollectives"]


class ListCollectives(GroupBase):
    """A group's collectives of lists."""

    @told_as_torch("grouped_allreduce")
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        name, opts = self._next_name(), opts or AllreduceCoalescedOptions()
        how = self._reductions.of(opts.reduceOp, tensors[0])
        operation = collectives.grouped_allreduce(tensors, name, how, True, self._flags(opts))
        return self._started("allreduce_coalesced", (operation,), tensors, opts, name=name)

    @told_as_torch("allgather")
    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Work:
        return self._gather_lists("allgather", outputs, tensors, opts)

    @told_as_torch("allgather")
    def allgather_coalesced(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Work:
        """`outputs`: for each rank the list of what it gives."""
        by_tensor = [list(of_ranks) for of_ranks in zip(*outputs, strict=True)]
        return self._gather_lists("allgather_coalesced", by_tensor, tensors, opts)

    def _gather_lists(self, label: str, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> Work:
        name, flags = self._next_name(), self._flags(opts)
        works = [
            self._gather_list(label, to, tensor, part_of(name, index), flags)
            for index, (to, tensor) in enumerate(zip(outputs, tensors, strict=True))
        ]

        def deliver(_: list[Any]) -> None:
            for _operation, target in works:
                target.deliver()

        return self._started(label, [operation for operation, _ in works], outputs, opts, deliver, name)

    def _gather_list(
        self, label: str, outputs: list[Tensor], tensor: Tensor, name: str | None, flags: int
    ) -> tuple[Operation, Target]:
        self._check_list(label, outputs, tensor)
        own = outputs[self._index]
        if own.numel() != tensor.numel():
            raise ValueError(
                f"{label}: output {self._index} has {own.numel()} elements, but this rank gives {tensor.numel()}"
            )
        target = Target(outputs, True)
        if len({output.numel() for output in outputs}) == 1:
            return collectives.allgather_into(as_row(tensor), target.memory, name, self._set, flags), target
        rows = [moved_count(output) for output in outputs]
        return collectives.allgather_into(as_moved(tensor), target.memory, name, self._set, flags, rows), target

    @told_as_torch("alltoall")
    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> Work:
        name, root = self._next_name(), opts.rootRank
        (tensor,) = tensors
        memory = as_moved(tensor)
        splits = [memory.numel() if rank == root else 0 for rank in range(self.size())]
        received = [0] * self.size()
        target = Target([memory.new_empty(0)], True)
        if root == self._index:
            self._check_list("gather", outputs[0], tensor)
            target = Target(outputs[0], True)
            received = [moved_count(output) for output in outputs[0]]
        operation = collectives.alltoall_into(
            memory, target.memory, splits, received, name, self._set, self._flags(opts)
        )
        return self._started("gather", (operation,), outputs, opts, lambda _: target.deliver(), name)

    @told_as_torch("alltoall")
    def scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> Work:
        name, root = self._next_name(), opts.rootRank
        (output,) = outputs
        target = Target([output], True)
        splits = [0] * self.size()
        memory = target.memory.new_empty(0)
        if root == self._index:
            self._check_list("scatter", tensors[0], output)
            memory = _joined(tensors[0], True)
            splits = [moved_count(tensor) for tensor in tensors[0]]
        received = [target.memory.numel() if rank == root else 0 for rank in range(self.size())]
        operation = collectives.alltoall_into(
            memory, target.memory, splits, received, name, self._set, self._flags(opts)
        )
        return self._started("scatter", (operation,), outputs, opts, lambda _: target.deliver(), name)

    @told_as_torch("reducescatter")
    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None) -> Work:
        name, opts = self._next_name(), opts or ReduceScatterOptions()
        (output,), (inputs,) = outputs, tensors
        self._check_list("reduce_scatter", inputs, output)
        if inputs[self._index].numel() != output.numel():
            raise ValueError(
                f"reduce_scatter: input {self._index} has {inputs[self._index].numel()} elements, but the output has "
                f"{output.numel()}"
            )
        how, target = self._reductions.of(opts.reduceOp, output), Target([output], False)
        whole = _joined(inputs, False)
        if len({tensor.numel() for tensor in inputs}) == 1:
            rows = whole.view(self.size(), output.numel())
            operation = collectives.reducescatter_into(rows, target.memory, name, how, self._flags(opts))
            return self._started("reduce_scatter", (operation,), outputs, opts, lambda _: target.deliver(), name)
        operation = collectives.allreduce(whole, name, how, False, self._flags(opts))
        start = sum(tensor.numel() for tensor in inputs[: self._index])

        def take(results: list[Any]) -> None:
            target.memory.copy_(results[0][start : start + output.numel()])
            target.deliver()

        return self._started("reduce_scatter", (operation,), outputs, opts, take, name)

    @told_as_torch("alltoall")
    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Work:
        name = self._next_name()
        self._check_list("all_to_all", outputs, tensors[0])
        self._check_list("all_to_all", tensors, outputs[0])
        target = Target(outputs, True)
        splits = [moved_count(tensor) for tensor in tensors]
        received = [moved_count(output) for output in outputs]
        operation = collectives.alltoall_into(
            _joined(tensors, True), target.memory, splits, received, name, self._set, self._flags(opts)
        )
        return self._started("all_to_all", (operation,), outputs, opts, lambda _: target.deliver(), name)

    def _check_list(self, label: str, tensors: Sequence[Tensor], like: Tensor) -> None:
        """Raises ValueError unless there is a tensor for each rank, all of one dtype."""
        if len(tensors) != self.size():
            raise ValueError(
                f"{label}: expected a list of {self.size()} tensors, one for each rank, got {len(tensors)}"
            )
        if any(tensor.dtype != like.dtype for tensor in tensors):
            raise ValueError(
                f"{label}: expected tensors of {like.dtype}, got {sorted({str(t.dtype) for t in tensors})}"
            )


def _joined(tensors: Sequence[Tensor], moved: bool) -> Tensor:
    """The elements of all, one after the other."""
    block = one_block(tensors)
    if block is None:
        block = torch.cat([flat(tensor) for tensor in tensors])
    return as_moved(block) if moved else block
