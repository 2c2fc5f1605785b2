# SPDX-License-Identifier: Apache-2.0
"""For how long a host is not used after its workers have failed (--blacklist-cooldown-range). Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from horovod.core.exceptions import InvalidRequestError

__all__ = ["LONGEST_S", "SHORTEST_S", "Cooldown"]

SHORTEST_S, LONGEST_S = 1, 3600
_DOUBLINGS = 12  # 2 ** 12 seconds are longer than the longest, whatever the shortest is


class Cooldown(NamedTuple):
    """The range of the times, in seconds."""

    low_s: float
    high_s: float

    @classmethod
    def of(cls, low_s: float, high_s: float) -> Cooldown:
        """A range that users have given. Raises ValueError unless 1 <= low_s <= high_s <= 3600."""
        if not SHORTEST_S <= low_s <= high_s <= LONGEST_S:
            raise InvalidRequestError(
                f"--blacklist-cooldown-range {low_s} {high_s}: expected two numbers of seconds, the smaller one first, "
                f"from {SHORTEST_S} to {LONGEST_S}"
            )
        return cls(low_s, high_s)

    def seconds(self, failures: int, uniform: Callable[[], float] = random.random) -> float:
        """How long the host is not used after its n-th failure, n from 1.

        The time doubles with every failure. Up to `low_s` is added at random, so that hosts which failed together do
        not come back together. `uniform`: a number from 0 to 1, new in every call.
        """
        wanted = self.low_s * (2.0 ** min(failures, _DOUBLINGS) + uniform())
        return min(max(wanted, self.low_s), self.high_s)
