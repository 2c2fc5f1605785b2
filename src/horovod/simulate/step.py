# SPDX-License-Identifier: Apache-2.0
"""One training step: forward, backward whose gradients are reduced as they get ready, update."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from horovod.simulate.costs import Cluster, Guess, batch_s, negotiation_s
from horovod.simulate.models import layers_of
from horovod.simulate.stragglers import slowest

__all__ = ["CYCLES_OF_2017", "Closing", "Workload", "efficiency", "of_model", "step_s"]

_FEW_HOSTS, _MOST_CLOSE_BYTES = 256, 16 << 20
_FORWARD = 1 / 3  # of forward and backward together, if only their sum is known


@dataclasses.dataclass(frozen=True)
class Closing:
    """When a batch of gradients closes: its bytes reach `close_bytes`, its oldest has waited `linger_s`, or all wait.

    A batch takes what is ready, up to `most_bytes`. Many hosts have larger batches. cycle_s above 0: batches begin at
    multiples of it instead, as in Horovod 0.28.1 and before.
    """

    close_bytes: float = 1 << 20
    linger_s: float = 1e-3
    most_bytes: float = 128 << 20
    cycle_s: float = 0.0

    def among(self, hosts: int) -> Closing:
        """The rules for so many hosts (close_bytes in native/collectives/plan.h)."""
        if hosts <= _FEW_HOSTS:
            return self
        return dataclasses.replace(self, close_bytes=max(self.close_bytes, min(_MOST_CLOSE_BYTES, hosts * 4096)))


CYCLES_OF_2017 = Closing(most_bytes=64 << 20, cycle_s=5e-3)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A step of one rank without communication.

    ready_s: when each gradient is ready, in seconds from the start of the step, ascending. sizes: their bytes, in the
    same order. Both of shape (gradients,). compute_s: forward and backward. update_s: what follows the reduction.
    samples: durations of whole steps, for their scatter; may be empty.
    """

    name: str
    ready_s: Any
    sizes: Any
    compute_s: float
    update_s: float = 0.0
    samples: tuple[float, ...] = ()

    @property
    def step_s(self) -> float:
        return self.compute_s + self.update_s

    def scaled(self, compute: float = 1.0, sizes: float = 1.0) -> Workload:
        """The same step with more compute before the same gradients, or with smaller gradients."""
        later = compute * self.compute_s - self.compute_s
        return dataclasses.replace(
            self, ready_s=self.ready_s + later, sizes=self.sizes * sizes, compute_s=self.compute_s + later
        )


def of_model(name: str, step_s: float, bytes_an_element: int = 4) -> Workload:
    """A step of a model of models.MODELS that takes `step_s` seconds: backward is divided by multiply-adds."""
    layers = layers_of(name)[::-1]  # gradients come from the output to the input
    work = np.cumsum([layer.work for layer in layers], dtype=np.float64)
    ready = step_s * (_FORWARD + (1 - _FORWARD) * work / work[-1])
    sizes = np.array([bytes_an_element * layer.parameters for layer in layers], np.float64)
    return Workload(name, ready, sizes, step_s)


def step_s(work: Workload, cluster: Cluster, guess: Guess, closing: Closing, known_hosts: int = 1) -> Any:
    """Seconds of a step on the cluster: array of shape (draws,)."""
    late = 1 + guess.jitter * slowest(cluster.ranks, work.samples) + guess.uneven * _many(cluster.hosts)
    if cluster.ranks == 1:
        return np.full(guess.draws, work.step_s)
    alone_s = _replayed(work, cluster, guess, closing.among(cluster.hosts), known_hosts, late) + work.update_s * late
    return alone_s * (1 + guess.scatter)


def _many(hosts: int) -> float:
    """0 for two hosts, 1 from four on: published losses grow most there."""
    return min(1.0, max(0.0, math.log2(hosts) - 1))


def efficiency(work: Workload, cluster: Cluster, guess: Guess, closing: Closing, known_hosts: int = 1) -> Any:
    """The part of the time of a step that is the step of one rank alone, 0 to 1: array of shape (draws,)."""
    return work.step_s / step_s(work, cluster, guess, closing, known_hosts)


def _replayed(work: Workload, cluster: Cluster, guess: Guess, closing: Closing, known_hosts: int, late: Any) -> Any:
    """Seconds until the last batch is reduced and backward is over."""
    draws, count = guess.draws, len(work.ready_s)
    before = np.concatenate([[0.0], np.cumsum(work.sizes)])  # bytes of the gradients before each one
    compute = work.compute_s * late
    agreement = negotiation_s(cluster, guess) if closing.cycle_s == 0 else np.zeros(draws)
    now, slowed, at = np.zeros(draws), np.zeros(draws), np.zeros(draws, np.int64)
    # All draws go on together; each has its own clock, and its compute is `slowed` seconds late at its time `now`.
    while np.any(at < count):
        active = at < count
        first = np.minimum(at, count - 1)
        start = _start(work, closing, now, first, before, late, slowed, guess.phase)
        end = np.searchsorted(work.ready_s, (start - slowed) / late * (1 + 1e-12), side="right")
        fits = np.searchsorted(before, before[first] + closing.most_bytes, side="right") - 1
        end = np.maximum(np.minimum(end, fits), first + 1)
        took = batch_s(before[end] - before[first], cluster, guess, known_hosts) + agreement
        left = np.maximum(0.0, compute + slowed - start)  # of compute, while this batch is reduced
        k = guess.interference
        slowed = np.where(active, slowed + np.minimum(took * k / (1 + k), left * k), slowed)
        now = np.where(active, start + took, now)
        at = np.where(active, end, at)
    return np.maximum(now, compute + slowed)


def _start(
    work: Workload, closing: Closing, now: Any, first: Any, before: Any, late: Any, slowed: Any, phase: Any
) -> Any:
    """When the batch begins whose first gradient is `first`."""
    ready = work.ready_s[first] * late + slowed
    if closing.cycle_s > 0:
        since = phase * closing.cycle_s
        ticks = np.ceil((np.maximum(now, ready) + since) / closing.cycle_s - 1e-9)
        return ticks * closing.cycle_s - since
    full = np.searchsorted(before[1:], before[first] + closing.close_bytes)
    last = len(work.ready_s) - 1
    is_full = work.ready_s[np.minimum(full, last)] * late + slowed  # or all wait: backward is over
    return np.maximum(now, np.minimum(is_full, ready + closing.linger_s))
