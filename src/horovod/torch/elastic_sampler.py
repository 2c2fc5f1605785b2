# SPDX-License-Identifier: Apache-2.0
"""ElasticSampler: what is left of an epoch, shared out anew whenever the number of ranks changes."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch

from horovod.core.context import is_initialized, rank, size
from horovod.elastic.worker.sampler import Partition, order_of

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Shares a dataset out among the ranks, and continues where it was when the number of ranks changes.

    Put it into the state. After every step, and before commit(), call record_batch() on every rank; at the end of an
    epoch, set_epoch() with the next one. Each rank gets equally many items, so a few come twice at the end of an epoch.

    dataset: anything with a length. shuffle, seed: the order is that of random.Random(seed + epoch).
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()  # for scripts of older Horovod; always empty
        self.rank, self.num_replicas = rank(), size()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch from its first item."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts a batch as done: `batch_size` items on this rank, and as many on each other rank.

        batch_idx is unused.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Shares out what is left of the epoch among the ranks there are now."""
        if is_initialized():  # between two worlds, the last one's
            self.rank, self.num_replicas = rank(), size()
        order = order_of(len(self.dataset), self.shuffle, self.seed, self.epoch)
        self._partition = Partition(order[self.processed_num :], self.num_replicas)
        self.remaining_indices = self._partition.remaining
        self.num_samples = self._partition.items_per_rank
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        self.indices = self._partition.items_of(self.rank)
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
