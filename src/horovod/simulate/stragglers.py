# SPDX-License-Identifier: Apache-2.0
"""How much later than the mean the slowest of n ranks is: it counts, since each step waits for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

__all__ = ["MOST_RANKS", "slowest", "spread_of"]

# Published losses do not grow from 128 to 512 ranks, as those of a distribution without an end would.
MOST_RANKS = 128


def slowest(ranks: int, samples: Sequence[float] = ()) -> float:
    """The expected maximum of `ranks` steps: standard deviations above the mean. 0 for one rank.

    samples: durations of steps, of any unit. No rank is slower than the slowest sample. Without samples: a normal
    distribution; above MOST_RANKS ranks the result stays the same.
    """
    if ranks <= 1:
        return 0.0
    if len(samples) < 2:
        return _of_normal(min(ranks, MOST_RANKS))
    ordered = np.sort(np.asarray(samples, np.float64))
    deviation = float(ordered.std())
    if deviation == 0:
        return 0.0
    below = (np.arange(len(ordered) + 1) / len(ordered)) ** ranks
    return float((ordered * np.diff(below)).sum() - ordered.mean()) / deviation


def spread_of(samples: Sequence[float]) -> float:
    """The standard deviation of the samples, as a part of their mean."""
    return float(np.std(samples) / np.mean(samples))


@functools.cache
def _of_normal(ranks: int) -> float:
    width = 0.004
    x = np.arange(-8, 8, width) + width / 2
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return float((x * ranks * below ** (ranks - 1) * density).sum() * width)
