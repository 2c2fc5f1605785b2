# SPDX-License-Identifier: Apache-2.0
"""Which items of a dataset each rank gets, while the number of ranks changes in the middle of an epoch. Pure.

All ranks know one order of the items, and take them in turns: of what remains, rank r of R takes items r, r + R, ... So
when each rank has taken k items, exactly the first k * R of them are taken. One number says what is done, whatever the
number of ranks was, and the next world shares out the rest. No item is lost and none comes twice, but for those that
fill up the last turn of a partition, fewer than R.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

__all__ = ["Partition", "order_of"]


def order_of(length: int, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """The order of an epoch, equal on all ranks."""
    order = list(range(length))
    if shuffle:
        random.Random(seed + epoch).shuffle(order)
    return order


class Partition:
    """The rest of an epoch, shared out among `ranks`."""

    def __init__(self, remaining: Sequence[int], ranks: int) -> None:
        self.remaining = list(remaining)
        self.ranks = ranks
        self.items_per_rank = -(-len(self.remaining) // ranks)

    def items_of(self, rank: int) -> list[int]:
        """A rank's items. All ranks get equally many: the first ones come again to fill the last turn."""
        every = itertools.cycle(self.remaining)
        return list(itertools.islice(every, rank, self.items_per_rank * self.ranks, self.ranks))
