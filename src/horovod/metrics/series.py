# SPDX-License-Identifier: Apache-2.0
"""The series that are exported: names, units and meanings, as one table. docs/monitoring.md shows it.

Names and labels are an interface: dashboards and alerts use them. Add new ones, and keep those that there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from horovod import __version__

__all__ = ["FAMILIES", "Family", "Place", "Sample", "Totals", "samples"]

Facts = Mapping[str, Any]  # of hvd.statistics()
# Each rank has a row for each other rank that it has waited for: without a limit, large jobs would have millions.
SHOWN_LATE_RANKS = 32


@dataclasses.dataclass(frozen=True)
class Place:
    """Where this process is in the job. `host`: its name. `worker`: its number in an elastic job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    generation: int
    transport: str
    worker: int | None = None

    def labels(self) -> dict[str, str]:
        """Those of each sample. A worker of an elastic job may get another rank, but keeps its number."""
        labels = {"rank": str(self.rank), "host": self.host}
        return labels if self.worker is None else {**labels, "worker": str(self.worker)}


@dataclasses.dataclass(frozen=True)
class Family:
    """One metric. `name` is without the suffix that its kind adds (_total, _info)."""

    name: str
    kind: str  # counter, gauge or info
    help: str
    unit: str = ""
    # The value of a counter in one generation; None: it has a row for each late rank, or is not a counter.
    of: Callable[[Facts], float] | None = None


@dataclasses.dataclass(frozen=True)
class Sample:
    family: Family
    labels: Mapping[str, str]
    value: float


def _counter(name: str, *path: str, help: str, unit: str = "") -> Family:
    def value(facts: Facts) -> float:
        found: Any = facts
        for key in path:
            found = found[key]
        return float(found) if isinstance(found, float) else int(found)

    return Family(name, "counter", help, unit, value)


_COUNTERS = (
    _counter("horovod_batches", "batches", help="Groups of tensors that were sent together."),
    _counter("horovod_tensors", "tensors", help="Tensors in all batches that were sent."),
    _counter("horovod_bytes", "bytes", unit="bytes", help="Bytes of all tensors that were sent."),
    _counter("horovod_calls", "arrivals", "calls", help="Calls of operations for which every rank has arrived."),
    _counter(
        "horovod_wait_seconds",
        "arrivals",
        "waited_s",
        unit="seconds",
        help="Sum of all calls' waits for the last rank; waits that overlap are all added.",
    ),
    _counter(
        "horovod_blocked_for_ranks_seconds",
        "arrivals",
        "blocked_for_ranks_s",
        unit="seconds",
        help="Seconds the script was blocked because another rank had not come yet.",
    ),
    _counter(
        "horovod_blocked_for_data_seconds",
        "arrivals",
        "blocked_for_data_s",
        unit="seconds",
        help="Seconds the script was blocked while data moved.",
    ),
    _counter("horovod_slow_requests", "slow_requests", help="Calls whose name, shape or dtype was new."),
    _counter("horovod_control_messages", "control_messages", help="Messages by which hosts agree on what runs next."),
    _counter("horovod_engine_wakes", "engine_wakes", help="How often the engine's thread was woken."),
    _counter("horovod_names_evicted", "names_evicted", help="Names that were forgotten because there were too many."),
    _counter("horovod_nccl_batches", "batches_by_nccl", help="Batches that NCCL has carried on the GPU."),
    _counter("horovod_level_batches", "batches_in_levels", help="NCCL batches that were reduced on two levels."),
    _counter("horovod_staged_batches", "batches_staged", help="Batches of GPUs that went through host memory."),
)
_LATE_WAITS = Family(
    "horovod_late_rank_waits",
    "counter",
    "Number of times that this rank waited 20 us or more for another, by late_rank (-1: unknown).",
)
_LATE_SECONDS = Family(
    "horovod_late_rank_wait_seconds", "counter", "Seconds this rank waited for each late rank.", "seconds"
)
_IN_FLIGHT = Family("horovod_in_flight_calls", "gauge", "Calls that have not ended.")
_RUNNING = Family(
    "horovod_running",
    "gauge",
    "1 while the process is in a world; after hvd.shutdown() the file is gone, and the port is closed.",
)
_SIZE = Family("horovod_world_size", "gauge", "Number of ranks in the job.")
_LOCAL_SIZE = Family("horovod_local_size", "gauge", "Number of ranks on this host.")
_GENERATION = Family("horovod_generation", "gauge", "Number of the world: it grows when an elastic job changes.")
_STARTED = Family("horovod_init_time_seconds", "gauge", "When hvd.init() returned last, in Unix time.", "seconds")
_INFO = Family("horovod_rank", "info", "This rank's local rank, its transport, and Horovod's version.")
FAMILIES = (
    *_COUNTERS,
    _LATE_WAITS,
    _LATE_SECONDS,
    _IN_FLIGHT,
    _RUNNING,
    _SIZE,
    _LOCAL_SIZE,
    _GENERATION,
    _STARTED,
    _INFO,
)


@dataclasses.dataclass(frozen=True)
class Totals:
    """The counters of a process over all its generations: none goes back when a generation ends.

    `counters` by name; `late` by the rank that came last: how often, and for how many seconds.
    """

    counters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    late: Mapping[int, tuple[int, float]] = dataclasses.field(default_factory=dict)

    def plus(self, facts: Facts) -> Totals:
        """These, and what the statistics of a generation say."""
        late = dict(self.late)
        for rank, row in facts["arrivals"]["by_rank"].items():
            times, waited_s = late.get(rank, (0, 0.0))
            late[rank] = times + row["times"], waited_s + row["waited_s"]
        return Totals({one.name: self.counters.get(one.name, 0) + one.of(facts) for one in _COUNTERS if one.of}, late)


def samples(place: Place, started_s: float, facts: Facts, totals: Totals) -> Iterator[Sample]:
    """All samples, those of a family one after the other, in the order of FAMILIES.

    `facts`: the statistics of this generation, which `totals` include.
    """
    labels = place.labels()
    for family in _COUNTERS:
        yield Sample(family, labels, totals.counters[family.name])
    longest = sorted(totals.late, key=lambda rank: totals.late[rank][1], reverse=True)
    for family, column in ((_LATE_WAITS, 0), (_LATE_SECONDS, 1)):
        for rank in sorted(longest[:SHOWN_LATE_RANKS]):
            yield Sample(family, {**labels, "late_rank": str(rank)}, totals.late[rank][column])
    yield Sample(_IN_FLIGHT, labels, facts["in_flight"])
    yield Sample(_RUNNING, labels, 1)
    yield Sample(_SIZE, labels, place.size)
    yield Sample(_LOCAL_SIZE, labels, place.local_size)
    yield Sample(_GENERATION, labels, place.generation)
    yield Sample(_STARTED, labels, started_s)
    about = {"local_rank": str(place.local_rank), "transport": place.transport, "version": __version__}
    yield Sample(_INFO, {**labels, **about}, 1)
