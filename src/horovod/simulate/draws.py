# SPDX-License-Identifier: Apache-2.0
"""The unknowns of a cluster, drawn 4,000 times or more; and the 200 draws that agree with what was measured on it.

Many settings of the model explain a few measurements equally well. How far their forecasts differ is the band.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod.simulate.costs import Cluster, Guess
from horovod.simulate.step import Closing, Workload, efficiency

__all__ = ["DRAWS", "EXPLAINED", "NOT_FITTED", "Band", "Measured", "Ranges", "agreeing", "band_of", "drawn"]

CANDIDATES = 4000
MOST_CANDIDATES = 64_000
DRAWS = 200
# A draw explains a measurement if it comes this near: what is measured differs by so much from one run to the next.
EXPLAINED = 0.03
# All draws that come this near agree equally well: repeats of a run differ by at least as much.
_SCATTER = 0.01
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)

Range = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Ranges:
    """Lowest and highest value of each array of Guess. The defaults: of a cluster of which nothing is known."""

    utilisation: Range = (0.1, 1.0)
    latency: Range = (0.5, 2.0)
    overhead_s: Range = (1e-6, 6e-6)
    interference: Range = (0.0, 0.5)
    jitter: Range = (0.0, 0.05)
    uneven: Range = (0.0, 0.1)
    fabric: Range = (1.0, 1.3)
    inside: Range = (0.6, 1.4)
    phase: Range = (0.0, 1.0)
    scatter: Range = (-0.02, 0.02)


# The rate that the network claims, NCCL's latencies, and ranks that are equally fast.
NOT_FITTED = Ranges((1, 1), (1, 1), (3e-6, 3e-6), (0, 0), (0, 0), (0, 0), (1, 1), (1, 1), scatter=(0, 0))
_RATHER_LOW = ("fabric", "uneven")  # most clusters are even
_BY_RATIO = ("utilisation", "latency", "overhead_s", "inside")  # as likely between 0.1 and 0.2 as between 0.2 and 0.4


@dataclasses.dataclass(frozen=True)
class Measured:
    """An efficiency that was measured, 0 to 1. base_ranks: the number of ranks that counts as 100%."""

    work: Workload
    cluster: Cluster
    closing: Closing
    efficiency: float
    base_ranks: int = 1

    def forecast(self, guess: Guess, known_hosts: int) -> Any:
        """The same point by the model: array of shape (draws,)."""
        reached = efficiency(self.work, self.cluster, guess, self.closing, known_hosts)
        if self.base_ranks == 1:
            return reached
        base = dataclasses.replace(self.cluster, hosts=1, ranks_a_host=self.base_ranks)
        return reached / efficiency(self.work, base, guess, self.closing, known_hosts)


@dataclasses.dataclass(frozen=True)
class Band:
    """A tenth of the draws is outside, half of it on either side."""

    low: float
    middle: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


def band_of(values: Any) -> Band:
    """Percentiles 5, 50 and 95 of an array of shape (draws,)."""
    return Band(*(float(value) for value in np.percentile(values, (5, 50, 95))))


def drawn(ranges: Ranges, count: int = DRAWS) -> Guess:
    """Values that fill the ranges evenly; the same ones each time."""
    arrays = {}
    for prime, field in zip(_PRIMES, dataclasses.fields(Ranges), strict=False):
        places = _halton(prime, count) ** (3 if field.name in _RATHER_LOW else 1)
        arrays[field.name] = _between(getattr(ranges, field.name), places, field.name in _BY_RATIO)
    return Guess(**arrays, negotiation=np.ones(count), messages=np.ones(count))


def agreeing(measured: Sequence[Measured], ranges: Ranges) -> Guess:
    """Draws from the ranges that agree with the measurements; with none, all of `DRAWS`.

    The tolerance is the scatter of measurements, or wider, if fewer than `DRAWS` candidates come as near. If half of
    the `DRAWS` nearest candidates do not explain the measurements, four times as many are drawn, up to 64,000.
    """
    if not measured:
        return drawn(ranges)
    count = CANDIDATES
    while True:
        candidates = drawn(ranges, count)
        error = _errors(measured, candidates)
        order = np.argsort(error, kind="stable")
        if error[order[DRAWS // 2]] <= EXPLAINED or count >= MOST_CANDIDATES:
            near = max(DRAWS, int(np.count_nonzero(error <= _SCATTER)))
            return candidates.at(order[np.linspace(0, near - 1, DRAWS).astype(np.int64)])
        count *= 4


def _errors(measured: Sequence[Measured], guess: Guess) -> Any:
    """How far each draw is from the measurements, as the root of the mean square: array of shape (draws,)."""
    known = max(point.cluster.hosts for point in measured)
    misses = [point.forecast(guess, known) - point.efficiency for point in measured]
    return np.sqrt(np.mean(np.square(misses), axis=0))


def _between(limits: Range, places: Any, by_ratio: bool) -> Any:
    low, high = limits
    return low * (high / low) ** places if by_ratio else low + (high - low) * places


def _halton(prime: int, count: int) -> Any:
    """The first `count` members of Halton's sequence in [0, 1): evenly spread without chance."""
    left, part, value = np.arange(1, count + 1), 1.0, np.zeros(count)
    while np.any(left):
        part /= prime
        value += part * (left % prime)
        left = left // prime
    return value
