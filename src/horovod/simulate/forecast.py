# SPDX-License-Identifier: Apache-2.0
"""The efficiency of a job on more hosts, what limits it there, and what would help. Pure: reads no file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from horovod.simulate.costs import Cluster, Guess
from horovod.simulate.draws import EXPLAINED, Band, Measured, Ranges, agreeing, band_of
from horovod.simulate.links import Link
from horovod.simulate.step import Closing, Workload, efficiency
from horovod.simulate.stragglers import spread_of

__all__ = ["CAUSES", "WIDE_POINTS", "Forecast", "Job", "Row", "WhatIf", "forecast"]

WIDE_POINTS = 15.0
_CLOSING = Closing()
# Of one rank's steps where no sample is known, and of what a few samples tell.
_JITTER = (0.01, 0.03)
_OF_SAMPLES = (0.7, 1.3)
# Each cause, and the draws without it.
CAUSES: dict[str, Callable[[Guess], Guess]] = {
    "bandwidth": lambda guess: guess.having(utilisation=np.inf),
    "messages": lambda guess: guess.having(messages=0),
    "stragglers": lambda guess: guess.having(jitter=0, uneven=0),
    "contention": lambda guess: guess.having(interference=0),
    "negotiation": lambda guess: guess.having(negotiation=0),
    "inside host": lambda guess: guess.having(inside=np.inf),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """A forecast's question.

    hosts: as many, ascending. inside, way: as in Cluster. batch: samples of a rank's step; None: not known. known:
    efficiencies that were measured on this cluster, by number of hosts, 0 to 1. halves: gradients are of 16 bits.
    busy_ranks: as many ranks of a host were at work when the step was measured. sparse, core_wait: as in Profile.
    """

    work: Workload
    link: Link
    hosts: tuple[int, ...]
    ranks_a_host: int
    inside: str
    way: str
    batch: int | None = None
    known: tuple[tuple[int, float], ...] = ()
    halves: bool = False
    busy_ranks: int = 1
    sparse: tuple[int, float] = (0, 0.0)
    core_wait: float = 0.0

    def cluster(self, hosts: int) -> Cluster:
        return Cluster(hosts, self.ranks_a_host, self.inside, self.link.network, self.link.gbit, self.way)

    @property
    def is_recorded(self) -> bool:
        """True if the step is that of a profile."""
        return bool(self.work.samples)

    @property
    def most_waited(self) -> float:
        """The share of its time in which a measured rank, of the profile or the link, waited for a core."""
        return max(self.core_wait, self.link.core_wait)

    @property
    def known_hosts(self) -> int:
        """As many hosts were measured."""
        return max(self.link.hosts, max((hosts for hosts, _ in self.known), default=1))

    @property
    def ranges(self) -> Ranges:
        """The ranges to draw from: measurements of the job tell more of the network than a preset does."""
        ranges = self.link.ranges
        if self.known_hosts > 1 and self.link.hosts == 1:
            ranges = dataclasses.replace(ranges, utilisation=Ranges.utilisation)
        if self.way == "direct" and self.link.interference is not None:  # it was measured on CPUs
            ranges = dataclasses.replace(ranges, interference=self.link.interference)
        if len(self.work.samples) > 1:
            spread = spread_of(self.work.samples)
            return dataclasses.replace(ranges, jitter=(spread * _OF_SAMPLES[0], spread * _OF_SAMPLES[1]))
        return ranges if self.known else dataclasses.replace(ranges, jitter=_JITTER)


@dataclasses.dataclass(frozen=True)
class Row:
    """One number of hosts. band: of the efficiency, in points. causes: points that each one costs, if all others stay.

    rate: samples a second, all ranks together; None if the batch is not known.
    """

    hosts: int
    ranks: int
    band: Band
    causes: dict[str, float]
    rate: float | None

    @property
    def limit(self) -> str:
        """The cause that costs most; empty if it costs less than half a point."""
        name, points = max(self.causes.items(), key=lambda item: item[1])
        return name if points >= 0.5 else ""


@dataclasses.dataclass(frozen=True)
class WhatIf:
    """A change, and the points of efficiency that it gains on `hosts` hosts, with its band."""

    change: str
    hosts: int
    gain: Band
    changes_training: bool


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The answer. errors: how far the model is from what was measured, in points, by number of hosts."""

    job: Job
    rows: tuple[Row, ...]
    what_ifs: tuple[WhatIf, ...]
    errors: tuple[tuple[int, float], ...]

    @property
    def is_wide(self) -> bool:
        return any(row.band.width > WIDE_POINTS for row in self.rows)

    @property
    def miss(self) -> float:
        """Points by which the model misses what was measured, at most; 0 if it can explain all of it."""
        return _miss(self.errors)


def forecast(job: Job) -> Forecast:
    """Takes a second or two."""
    measured = [Measured(job.work, job.cluster(hosts), _CLOSING, value) for hosts, value in job.known]
    guess = agreeing(measured, job.ranges)
    misses = (float(np.median(point.forecast(guess, job.known_hosts))) - point.efficiency for point in measured)
    errors = tuple((hosts, 100 * miss) for (hosts, _), miss in zip(job.known, misses, strict=True))
    rows = tuple(_row(job, hosts, guess, _miss(errors) + 100 * job.most_waited) for hosts in job.hosts)
    gains = sorted(_what_ifs(job, job.hosts[-1], guess), key=lambda one: -one.gain.middle)
    return Forecast(job, rows, tuple(gains), errors)


def _points(job: Job, cluster: Cluster, guess: Guess, work: Workload | None = None) -> Any:
    return 100 * efficiency(work or job.work, cluster, guess, _CLOSING, job.known_hosts)


def _miss(errors: Sequence[tuple[int, float]]) -> float:
    worst = max((abs(points) for _, points in errors), default=0.0)
    return worst if worst > 100 * EXPLAINED else 0.0


def _row(job: Job, hosts: int, guess: Guess, miss: float) -> Row:
    cluster = job.cluster(hosts)
    reached = _points(job, cluster, guess)
    band = band_of(reached)
    if cluster.ranks > 1:
        band = Band(max(0.0, band.low - miss), band.middle, max(band.high, min(100.0, band.high + miss)))
    causes = {
        name: max(0.0, float(np.median(_points(job, cluster, without(guess)) - reached)))
        for name, without in CAUSES.items()
    }
    rate = None if job.batch is None else cluster.ranks * job.batch / job.work.step_s * band.middle / 100
    return Row(hosts, cluster.ranks, band, causes, rate)


def _what_ifs(job: Job, hosts: int, guess: Guess) -> Sequence[WhatIf]:
    """Changes that a user can make, on the largest number of hosts."""
    cluster = job.cluster(hosts)
    if cluster.ranks == 1:
        return ()
    reached = _points(job, cluster, guess)
    found = []

    def add(change: str, points: Any, changes_training: bool = False) -> None:
        found.append(WhatIf(change, hosts, band_of(points - reached), changes_training))

    faster = job.link.faster()
    if faster is not None and hosts > 1:
        add(f"a network of {faster:g} Gbit/s", _points(job, dataclasses.replace(cluster, gbit=faster), guess))
    if not job.halves:
        halved = job.work.scaled(sizes=0.5)
        add("compression=hvd.Compression.fp16", _points(job, cluster, guess, halved), changes_training=True)
    twice = job.work.scaled(compute=2.0)
    change = "twice the batch, or twice backward_passes_per_step"
    add(change, _points(job, cluster, guess, twice), changes_training=True)
    return found
