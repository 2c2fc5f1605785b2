# SPDX-License-Identifier: Apache-2.0
"""The ranks that train a net together, as layers and solver use them. One process alone needs nothing of Horovod."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import horovod.torch as hvd
from horovod.gradients.recording import refuse_profile

__all__ = ["Replicas"]


@dataclass(frozen=True)
class Replicas:
    """`size` ranks, this one's `rank`. The calls that reduce are made by all ranks in the same order."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of_this_job(cls) -> Replicas:
        """All ranks of the job that started this process."""
        refuse_profile("Caffe")
        hvd.init()
        return cls(hvd.rank(), hvd.size())

    def total(self, value: Tensor, name: str) -> Tensor:
        """The sum over the ranks."""
        return value if self.size == 1 else hvd.allreduce(value, op=hvd.Sum, name=name)

    def mean(self, value: Tensor, name: str) -> Tensor:
        """The mean over the ranks."""
        return value if self.size == 1 else hvd.allreduce(value, op=hvd.Average, name=name)

    def largest(self, value: Tensor, name: str) -> Tensor:
        """The largest of the ranks' values."""
        return value if self.size == 1 else hvd.allreduce(value, op=hvd.Max, name=name)

    def share(self, tensors: list[tuple[str, Tensor]]) -> None:
        """Gives all ranks rank 0's values, in place."""
        if self.size > 1:
            hvd.broadcast_parameters(tensors, root_rank=0)
