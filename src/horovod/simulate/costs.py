# SPDX-License-Identifier: Apache-2.0
"""The time of one batch's allreduce: formulas that one can check by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

__all__ = ["INSIDE_BYTES_PER_S", "SMALL_STEPS", "Cluster", "Guess", "batch_s", "negotiation_s"]

# NCCL's own constants (src/graph/tuning.cc, 2.8, ring, protocol Simple): seconds a step. TCP: assumed.
STEP_S = {"nvlink": 3.4e-6, "pcie": 5.7e-6, "memory": 1e-6, "rdma": 9.6e-6, "tcp": 30e-6}
# Of one rank's share in a ring inside a host; "memory": of a host's ranks that share memory.
INSIDE_BYTES_PER_S = {"nvlink": 40e9, "pcie": 9e9, "memory": 6e9}
# NCCL: a ring takes this much longer for each step once a rank's part passes 4 KiB.
_PLATEAU = 1.9
_PLATEAU_BYTES = 4096
# Messages that a leader sends to and gets from each other host for a batch (docs/algorithms.md, direct exchange). In
# groups of hosts, a batch is one chunk, and has half as many for each peer.
_MESSAGES = 8
# More hosts are in groups; for a batch of fewer bytes a host, they exchange in groups (native/collectives/plan.h).
_HOSTS_WITHOUT_GROUPS = 16
_BYTES_FOR_HOST, _MOST_BYTES = 128, 32 << 10
# More hosts have a tree of leaders (native/world/control_tree.h).
_STAR_HOSTS = 256
# Their messages follow each other: a part is sent, folded, sent back.
_TRIPS = 4
_TRIPS_IN_GROUPS = 6
# An allreduce of a few bytes takes as many steps of latency in this way, with its negotiation.
SMALL_STEPS = _TRIPS + 2


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts of a forecast.

    inside: what joins a host's ranks, a key of INSIDE_BYTES_PER_S. network: tcp or rdma. gbit: the network's nominal
    rate, in Gbit/s a host. way: direct (Horovod's own exchange between hosts, shared memory inside), ring (NCCL's
    ring) or nccl (its ring or its tree, whichever is shorter).
    """

    hosts: int
    ranks_a_host: int
    inside: str = "pcie"
    network: str = "tcp"
    gbit: float = 25.0
    way: str = "nccl"

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_a_host


@dataclasses.dataclass(frozen=True)
class Guess:
    """The unknowns of a cluster, `draws` possible values of each: arrays of float64, shape (draws,).

    utilisation: the part of the network's nominal rate that an allreduce reaches. latency: a multiple of STEP_S.
    overhead_s: processor time of a message at either end, in seconds. interference: how much longer compute takes
    while the network is busy; 0.1: by a tenth. jitter: standard deviation of a rank's step, as a part of the step.
    uneven: how much later ranks are on many hosts, beside that, as a part of the step: hosts are not equally fast.
    fabric: how much longer data takes on far more hosts than were measured. inside: a multiple of INSIDE_BYTES_PER_S.
    phase: where in a cycle of the closing rules backward begins, 0 to 1. scatter: of measurements, as a part of the
    step. negotiation, messages: factors: 1, or 0 to leave that cause out.
    """

    utilisation: Any
    latency: Any
    overhead_s: Any
    interference: Any
    jitter: Any
    uneven: Any
    fabric: Any
    inside: Any
    phase: Any
    scatter: Any
    negotiation: Any
    messages: Any

    @property
    def draws(self) -> int:
        return len(self.utilisation)

    def at(self, places: Any) -> Guess:
        """Some of the draws, by their numbers."""
        return Guess(*(getattr(self, field.name)[places] for field in dataclasses.fields(self)))

    def having(self, **values: float) -> Guess:
        """The same draws with one value in place of some arrays."""
        return dataclasses.replace(self, **{name: np.full(self.draws, value) for name, value in values.items()})


def batch_s(size: Any, cluster: Cluster, guess: Guess, known_hosts: int) -> Any:
    """Seconds that an allreduce of `size` bytes takes: arrays of shape (draws,).

    known_hosts: the largest number of hosts that was measured; the network may be slower for more.
    """
    if cluster.ranks == 1:
        return np.zeros(guess.draws)
    inside = INSIDE_BYTES_PER_S[cluster.inside] * guess.inside
    if cluster.hosts == 1:
        return _inside_s(size, cluster, guess, inside)
    between = cluster.gbit / 8 * 1e9 * guess.utilisation / _slower(cluster.hosts, guess, known_hosts)
    if cluster.way == "direct":
        return _direct_s(size, cluster, guess, between) + _inside_s(size, cluster, guess, inside)
    ring_s = _ring_s(size, cluster, guess, inside, between)
    return ring_s if cluster.way == "ring" else np.minimum(ring_s, _tree_s(size, cluster, guess, inside, between))


def negotiation_s(cluster: Cluster, guess: Guess) -> Any:
    """Seconds until all hosts agree on a batch: a message to rank 0 from each host, and one back."""
    if cluster.hosts == 1:
        return np.zeros(guess.draws)
    trip = STEP_S[cluster.network] * guess.latency
    if cluster.hosts > _STAR_HOSTS:
        return guess.negotiation * (4 * trip + 4 * guess.overhead_s * math.isqrt(cluster.hosts))
    return guess.negotiation * (2 * trip + 2 * guess.overhead_s * cluster.hosts)


def _slower(hosts: int, guess: Guess, known_hosts: int) -> Any:
    """The factor of the fabric: full from 4 times as many hosts as are known."""
    far = min(1.0, max(0.0, math.log(hosts / known_hosts, 4)))
    return 1 + (guess.fabric - 1) * far


def _inside_s(size: Any, cluster: Cluster, guess: Guess, inside: Any) -> Any:
    local = cluster.ranks_a_host
    if local == 1:
        return np.zeros(guess.draws)
    steps = 2 * (local - 1)
    return steps * STEP_S[cluster.inside] * guess.latency * guess.messages + steps / local * size / inside


def _direct_s(size: Any, cluster: Cluster, guess: Guess, between: Any) -> Any:
    others = cluster.hosts - 1
    share_limit = min(_MOST_BYTES, _BYTES_FOR_HOST * cluster.hosts)
    in_groups = (cluster.hosts > _HOSTS_WITHOUT_GROUPS) & (size / cluster.hosts < share_limit)
    peers = 2 * (math.sqrt(cluster.hosts) - 1)
    messages = np.where(in_groups, _MESSAGES / 2 * peers, _MESSAGES * others)
    trips = np.where(in_groups, _TRIPS_IN_GROUPS, _TRIPS)
    busy = np.maximum(messages * guess.overhead_s * guess.messages, 2 * others / cluster.hosts * size / between)
    return busy + trips * STEP_S[cluster.network] * guess.latency * guess.messages


def _ring_s(size: Any, cluster: Cluster, guess: Guess, inside: Any, between: Any) -> Any:
    slow, steps = 2 * (cluster.hosts - 1), 2 * (cluster.ranks - 1)
    latency = (
        (slow * STEP_S[cluster.network] + (steps - slow) * STEP_S[cluster.inside]) * guess.latency * guess.messages
    )
    latency = np.where(size >= cluster.ranks * _PLATEAU_BYTES, _PLATEAU * latency, latency)
    return latency + steps / cluster.ranks * size / np.minimum(between, inside)


def _tree_s(size: Any, cluster: Cluster, guess: Guess, inside: Any, between: Any) -> Any:
    """Two trees of half of the data each: a host's link carries all bytes once in each direction, up and down."""
    depth = math.ceil(math.log2(cluster.hosts))
    steps = 2 * depth * STEP_S[cluster.network] + 2 * (cluster.ranks_a_host - 1) * STEP_S[cluster.inside]
    return steps * guess.latency * guess.messages * _PLATEAU + 2 * size / np.minimum(between, inside)
