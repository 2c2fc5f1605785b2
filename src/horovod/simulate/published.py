# SPDX-License-Identifier: Apache-2.0
"""Published results (data/published.json), and how far the model is from them: all errors, the bad ones too."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from horovod.simulate.costs import Cluster
from horovod.simulate.draws import NOT_FITTED, Band, Measured, Ranges, agreeing, band_of
from horovod.simulate.step import CYCLES_OF_2017, of_model

__all__ = ["FILE", "Check", "Point", "Row", "as_json", "as_text", "checked", "points"]

FILE = Path(__file__).parent / "data" / "published.json"


@dataclasses.dataclass(frozen=True)
class Point:
    """A published efficiency. cluster, series: where it is in the file; limit: a cause that is not the network."""

    cluster: str
    series: int
    measured: Measured
    limit: str

    @property
    def model(self) -> str:
        return self.measured.work.name

    @property
    def ranks(self) -> int:
        return self.measured.cluster.ranks

    @property
    def hosts(self) -> int:
        return self.measured.cluster.hosts


@dataclasses.dataclass(frozen=True)
class Row:
    """A point that was forecast. In points of efficiency, 0 to 100."""

    point: Point
    published: float
    band: Band

    @property
    def error(self) -> float:
        return self.band.middle - self.published

    @property
    def is_inside(self) -> bool:
        return self.band.low <= self.published <= self.band.high


@dataclasses.dataclass(frozen=True)
class Check:
    """Forecasts of `rows`, made from other points of the file. The letter names the check in its table."""

    letter: str
    title: str
    rows: tuple[Row, ...]

    @property
    def mean(self) -> float:
        return statistics.mean(abs(row.error) for row in self.rows)

    @property
    def worst(self) -> float:
        return max((row.error for row in self.rows), key=abs)

    @property
    def inside(self) -> int:
        """As many rows are in their bands."""
        return sum(row.is_inside for row in self.rows)


def points() -> list[Point]:
    """All points of the file with more than one rank, in its order."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return [point for cluster in content["clusters"] for point in _of_cluster(cluster)]


def _of_cluster(cluster: dict[str, Any]) -> Iterator[Point]:
    for number, series in enumerate(cluster["series"]):
        base, rate = next(iter(series.get("base", {"1": series.get("one")}).items()))
        of_one = rate / int(base)
        work = of_model(series["model"], series["batch"] / of_one, series.get("bytes", 4))
        reached = {int(ranks): total / of_one / int(ranks) for ranks, total in series.get("rates", {}).items()}
        reached |= {int(ranks): percent / 100 for ranks, percent in series.get("percent", {}).items()}
        for ranks, value in reached.items():
            local = min(ranks, cluster["ranks_a_host"])
            shape = Cluster(
                ranks // local, local, cluster["inside"], cluster["kind"], float(cluster["gbit"]), cluster["way"]
            )
            measured = Measured(work, shape, CYCLES_OF_2017, value, int(base))
            yield Point(cluster["id"], number, measured, cluster.get("limit", ""))


def checked() -> list[Check]:
    """All checks, from the one that knows least of the cluster to the one that knows most."""
    known = points()
    roce = [point for point in known if point.cluster == "roce-rdma"]
    tcp = [point for point in known if point.cluster == "roce-tcp"]
    plain = [point for point in known if point.cluster == "plain-tcp"]
    small = [point for point in roce if point.ranks == 16]
    return [
        Check("A", "nothing fitted: the network's nominal rate", _forecast((), known, NOT_FITTED)),
        Check("B", "the points that were fitted, 16 GPUs", _forecast(small, small) + _forecast(tcp, tcp)),
        Check("C", "128 GPUs, from 16 of the same cluster", _forecast(small, [p for p in roce if p.ranks == 128])),
        Check("D", "512 GPUs, from 16 of the same cluster", _forecast(small, [p for p in roce if p.ranks == 512])),
        Check("F", "another cluster, from 16 GPUs of the first", _forecast(tcp, plain)),
        Check("H", "more hosts, from 1 and 2 of the same cluster", _series(known, 2)),
        Check("J", "more hosts, from 1, 2 and 4 of the same cluster", _series(known, 3)),
        Check("K", "as H, of a job that another cause limits", _series(known, 2, lambda point: bool(point.limit))),
    ]


def _series(
    known: Sequence[Point], count: int, wanted: Callable[[Point], bool] = lambda point: not point.limit
) -> tuple[Row, ...]:
    """Forecasts of each series of points from its `count` smallest worlds of whole hosts."""
    rows: list[Row] = []
    for key in dict.fromkeys((point.cluster, point.series) for point in known if wanted(point)):
        mine = [point for point in known if (point.cluster, point.series) == key]
        local = max(point.measured.cluster.ranks_a_host for point in mine)
        whole = [point for point in mine if point.ranks % local == 0]
        of_base = sum(point.measured.base_ranks == local for point in whole[:1])  # one host is 100%
        few = count - of_base
        if [point.hosts for point in whole[:few]] == [1, 2, 4][of_base:count]:
            rows += _forecast(whole[:few], whole[few:])
    return tuple(rows)


def _forecast(known: Sequence[Point], wanted: Sequence[Point], ranges: Ranges | None = None) -> tuple[Row, ...]:
    guess = agreeing([point.measured for point in known], ranges or Ranges())
    hosts = max((point.hosts for point in known), default=1)
    return tuple(
        Row(point, 100 * point.measured.efficiency, band_of(100 * point.measured.forecast(guess, hosts)))
        for point in wanted
    )


def as_text(checks: Sequence[Check]) -> str:
    """The tables of `python -m horovod.simulate published`."""
    return "\n\n".join("\n".join(_table(check)) for check in checks)


def _table(check: Check) -> Iterator[str]:
    yield f"{check.letter}. {check.title}"
    yield f"{'source':13} {'model':10} {'ranks':>5} {'published':>9} {'forecast':>8} {'90% band':>13} {'error':>6}"
    for row in check.rows:
        point, band = row.point, f"{row.band.low:.1f} to {row.band.high:.1f}"
        notes = ("" if row.is_inside else "  outside") + (f"  limited by {point.limit}" if point.limit else "")
        shown = f"{row.published:9.1f} {row.band.middle:8.1f} {band:>13} {row.error:+6.1f}"
        yield f"{point.cluster:13} {point.model:10} {point.ranks:5d} {shown}{notes}"
    inside = f"{check.inside} of {len(check.rows)} in their bands"
    yield f"mean error {check.mean:.1f} points, worst {check.worst:+.1f}; {inside}"


def as_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The same for programs; efficiencies in points, 0 to 100."""
    return [
        {
            "check": check.letter,
            "title": check.title,
            "mean": check.mean,
            "worst": check.worst,
            "inside": check.inside,
            "rows": [
                {
                    "source": row.point.cluster,
                    "model": row.point.model,
                    "ranks": row.point.ranks,
                    "published": row.published,
                    "forecast": row.band.middle,
                    "band": [row.band.low, row.band.high],
                    "limit": row.point.limit or None,
                }
                for row in check.rows
            ],
        }
        for check in checks
    ]
