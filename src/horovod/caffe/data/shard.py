# SPDX-License-Identifier: Apache-2.0
"""Which records a rank reads: record `rank`, then every size-th one, round and round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from horovod.caffe.replicas import Replicas

__all__ = ["Shard"]


class Shard:
    """An endless order of record numbers. `order(epoch)` is the order of an epoch, equal on all ranks.

    Without a `count`, the numbers grow for ever: the source of the records begins again by itself.
    """

    def __init__(
        self, count: int | None, replicas: Replicas, order: Callable[[int], Sequence[int]] | None = None, skip: int = 0
    ) -> None:
        self._count, self._step = count, replicas.size
        self._next = replicas.rank + skip
        self._order = order
        self._epoch = -1
        self._now: Sequence[int] = range(count or 0)

    def __next__(self) -> int:
        following = self._next
        self._next += self._step
        if self._count is None:
            return following
        epoch, place = divmod(following, self._count)
        if self._order is not None and epoch != self._epoch:
            self._epoch, self._now = epoch, self._order(epoch)
        return int(self._now[place])

    def __iter__(self) -> Shard:
        return self


def shuffled(count: int, seed: int) -> Callable[[int], Sequence[int]]:
    """Orders that differ from epoch to epoch."""
    return lambda epoch: np.random.default_rng((seed, epoch)).permutation(count).tolist()
