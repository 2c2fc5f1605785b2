# SPDX-License-Identifier: Apache-2.0
"""Send and receive between two ranks of a group."""

from __future__ import annotations

from torch import Tensor
from torch.distributed import Work

from horovod.torch.distributed.base import GroupBase
from horovod.torch.distributed.errors import told_as_torch
from horovod.torch.distributed.memory import Target, as_moved
from horovod.torch.distributed.work import OperationsWork
from horovod.torch.tensors import collectives

__all__ = ["PeerOperations"]


class _Received(OperationsWork):
    """The work of a receive, which knows the sender."""

    ranks: list[int]  # of the group's members in the world

    def source_rank(self) -> int:
        self.wait()
        return self.ranks.index(self.results[0])

    _source_rank = source_rank


class PeerOperations(GroupBase):
    """A group's operations between two ranks."""

    @told_as_torch(None)
    def send(self, tensors: list[Tensor], to: int, tag: int) -> Work:
        self._check_open()
        (tensor,) = tensors
        operation = collectives.send(as_moved(tensor), self._peer("send", to), tag, self._set, 0)
        return self._started("send", (operation,), tensors)

    @told_as_torch(None)
    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Work:
        return self._receive(tensors, self._peer("recv", source), tag)

    @told_as_torch(None)
    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        return self._receive(tensors, None, tag)

    def _peer(self, label: str, rank: int) -> int:
        """The rank of the world."""
        if not 0 <= rank < self.size():
            raise ValueError(f"{label}: expected a rank from 0 to {self.size() - 1}, got {rank}")
        return self._ranks[rank]

    def _receive(self, tensors: list[Tensor], source: int | None, tag: int) -> Work:
        self._check_open()
        target = Target(tensors, True)
        operation = collectives.receive(target.memory, source, tag, self._set, 0)
        work = _Received((operation,), tensors, self._limit("recv"), lambda _: target.deliver())
        work.ranks = self._ranks
        return self._recorded(work)
