# SPDX-License-Identifier: Apache-2.0
"""The collectives of single tensors, and the class of process groups that has all methods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, Work

from horovod.core.calls import run_known
from horovod.core.collectives import Reduction
from horovod.core.exceptions import HorovodInternalError
from horovod.core.native import SYNC
from horovod.core.operations import Operation, after_run
from horovod.torch.distributed.base import part_of
from horovod.torch.distributed.errors import as_torch, told_as_torch
from horovod.torch.distributed.lists import ListCollectives
from horovod.torch.distributed.memory import Target, as_moved, as_row, flat
from horovod.torch.distributed.names import with_all_names
from horovod.torch.distributed.peers import PeerOperations
from horovod.torch.distributed.work import DONE, limited
from horovod.torch.sparse import SparseReduction
from horovod.torch.tensors import collectives

__all__ = ["HorovodProcessGroup"]

_DEFAULT = AllreduceOptions()
_KNOWS_WAITERS = hasattr(_DEFAULT, "asyncOp")  # the options say whether the caller waits at once
_MOST_PREPARED = 1024


@with_all_names
class HorovodProcessGroup(ListCollectives, PeerOperations):
    """The group of the members of a process set."""

    def allreduce(self, tensors: list[Tensor], opts: Any = _DEFAULT) -> Work:
        """This sets the latency of small tensors, so keep it short."""
        tensor = tensors[0]
        if _KNOWS_WAITERS and not opts.asyncOp and len(tensors) == 1:
            ended = run_known(self._prepared, tensor, self._context.pointer, hash(opts.reduceOp))
            if not isinstance(ended, bool):
                try:
                    operation = after_run(self._context, ended, tensor)
                    if operation is not None:
                        operation.wait(None, self._allreduce_limit)
                except HorovodInternalError as error:
                    raise as_torch(error) from None
                return DONE
        return self._allreduce(tensors, opts)

    @told_as_torch("allreduce")
    def _allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        name, tensor = self._next_name(), tensors[0]
        how = self._reductions.of(opts.reduceOp, tensor)
        if tensor.layout is torch.sparse_coo and len(tensors) == 1:
            return self._allreduce_sparse(tensor, how, opts, name)
        if len(tensors) != 1:
            operation = collectives.grouped_allreduce(tensors, name, how, True, self._flags(opts))
        elif self._flags(opts) and self._coalesced is None:
            collectives.run_allreduce(tensor, name, how, True, self._limit("allreduce"))
            self._remember(opts.reduceOp, how, tensor)
            return DONE
        else:
            operation = collectives.allreduce(tensor, name, how, True)
        return self._started("allreduce", (operation,), tensors, opts, name=name)

    def _allreduce_sparse(self, tensor: Tensor, how: Reduction, opts: Any, name: str | None) -> Work:
        reduction = SparseReduction(tensor.detach(), name, how[0] or 0, self._set)

        def deliver(results: list[Any]) -> None:
            with torch.no_grad():
                tensor.copy_(reduction.result_of(results[0]).coalesce())

        return self._started("allreduce", (reduction.operation,), [tensor], opts, deliver, name)

    def _remember(self, op: Any, how: Reduction, tensor: Tensor) -> None:
        """The next call finds its request at once, if the core has prepared it."""
        request = collectives.prepared_allreduce(how, tensor)
        if request is not None and self._names is None and self._reductions.has(op):
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[hash(op), tensor.dtype, tensor.shape] = request

    @told_as_torch("broadcast")
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        name, root, flags = self._next_name(), self._root(opts), self._flags(opts)
        targets = [Target([tensor], True) for tensor in tensors]
        if self._ranks[self._index] == root:
            for target, tensor in zip(targets, tensors, strict=True):
                target.fill(tensor)
        operations = [
            collectives.broadcast(target.memory, root, part_of(name, index), self._set, True, flags)
            for index, target in enumerate(targets)
        ]
        return self._started("broadcast", operations, tensors, opts, _deliver(targets), name)

    @told_as_torch("allreduce")
    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        name, is_root = self._next_name(), self._world_rank == self._root(opts)
        # The other ranks keep their tensors, as with Gloo.
        operations = [
            collectives.allreduce(
                tensor, part_of(name, index), self._reductions.of(opts.reduceOp, tensor), is_root, self._flags(opts)
            )
            for index, tensor in enumerate(tensors)
        ]
        return self._started("reduce", operations, tensors, opts, name=name)

    @told_as_torch("allgather")
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        return self._gather_singles([output], [tensor], opts)

    @told_as_torch("allgather")
    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Work:
        return self._gather_singles(outputs, tensors, opts)

    def _gather_singles(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any) -> Work:
        name = self._next_name()
        targets, operations = [], []
        for index, (output, tensor) in enumerate(zip(outputs, tensors, strict=True)):
            self._check_sizes("all_gather_into_tensor", "output", output, tensor)
            targets.append(Target([output], True))
            operations.append(
                collectives.allgather_into(
                    as_row(tensor), targets[-1].memory, part_of(name, index), self._set, self._flags(opts)
                )
            )
        return self._started("allgather", operations, outputs, opts, _deliver(targets), name)

    @told_as_torch("reducescatter")
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = _DEFAULT) -> Work:
        return self._scatter_singles([output], [tensor], opts)

    @told_as_torch("reducescatter")
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = _DEFAULT
    ) -> Work:
        return self._scatter_singles(outputs, tensors, opts)

    def _scatter_singles(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any) -> Work:
        name = self._next_name()
        targets, operations = [], []
        for index, (output, tensor) in enumerate(zip(outputs, tensors, strict=True)):
            self._check_sizes("reduce_scatter_tensor", "input", tensor, output)
            targets.append(Target([output], False))
            how = self._reductions.of(opts.reduceOp, tensor)
            rows = flat(tensor).view(self.size(), -1) if tensor.numel() else flat(tensor).view(self.size(), 0)
            operations.append(
                collectives.reducescatter_into(rows, targets[-1].memory, part_of(name, index), how, self._flags(opts))
            )
        return self._started("reducescatter", operations, outputs, opts, _deliver(targets), name)

    @told_as_torch("alltoall")
    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int] | None,
        splits: Sequence[int] | None,
        opts: Any = None,
    ) -> Work:
        name, target = self._next_name(), Target([output], True)
        memory = as_moved(tensor)
        operation = collectives.alltoall_into(
            memory,
            target.memory,
            self._elements("input", splits, tensor, memory),
            self._elements("output", output_splits, output, target.memory),
            name,
            self._set,
            self._flags(opts),
        )
        return self._started("alltoall", (operation,), [output], opts, _deliver([target]), name)

    def _elements(self, what: str, splits: Sequence[int] | None, tensor: Tensor, memory: Tensor) -> list[int]:
        """`splits` of rows, or equal ones, in elements of `memory`."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self.size():
                raise ValueError(
                    f"all_to_all_single: expected a multiple of {self.size()} {what} rows, got {rows}\n"
                    f"hint: give {what}_split_sizes"
                )
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows:
            raise ValueError(
                f"all_to_all_single: {what}_split_sizes={list(splits)}: expected {self.size()} numbers that add up to "
                f"the {rows} rows of the {what}"
            )
        width = memory.numel() // rows if rows else 0
        return [width * split for split in splits]

    def _check_sizes(self, call: str, what: str, large: Tensor, small: Tensor) -> None:
        if large.numel() != self.size() * small.numel() or large.dtype != small.dtype:
            raise ValueError(
                f"{call}: the {what} has {large.numel()} elements of {large.dtype}: expected {self.size()} times the "
                f"{small.numel()} elements of {small.dtype} of one rank"
            )

    @told_as_torch(None)
    def barrier(self, opts: Any = None) -> Work:
        name, flags = self._next_name(), self._flags(opts)
        return self._started("barrier", (self._meet(name, flags),), [], opts, name=name)

    @told_as_torch(None)
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier with a time limit. torch.distributed.monitored_barrier refuses all backends but Gloo."""
        self._meet(self._next_name(), SYNC).wait(None, limited(self._limit("monitored_barrier"), timeout))

    def _meet(self, name: str | None, flags: int) -> Operation:
        if name is None:
            return collectives.start_barrier(self._set, flags)
        # A barrier has no name.
        return collectives.allreduce(torch.zeros(1), name, self._reductions.of_one, True, flags)


def _deliver(targets: list[Target]) -> Any:
    if not any(target.is_private for target in targets):
        return None

    def deliver(_: list[Any]) -> None:
        for target in targets:
            target.deliver()

    return deliver
