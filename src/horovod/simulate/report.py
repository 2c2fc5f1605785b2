# SPDX-License-Identifier: Apache-2.0
"""A forecast as text for people and as a table for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from horovod.core.telemetry.core_waits import LEAST_TOLD
from horovod.core.wording import counted
from horovod.simulate.draws import Band
from horovod.simulate.forecast import CAUSES, WIDE_POINTS, Forecast, Job, Row
from horovod.simulate.profile import sparse_in_words

__all__ = ["as_json", "as_text", "assumptions", "hints", "title"]

_CHANGES_TRAINING = "changes the training: check what the model learns"


def as_text(made: Forecast) -> str:
    """The tables that `python -m horovod.simulate forecast` prints."""
    return "\n".join(
        [*hints(made), title(made), assumptions(made), "", *_rows(made), "", *_gains(made), *_errors(made)]
    )


def title(made: Forecast) -> str:
    work = made.job.work
    megabytes = float(work.sizes.sum()) / 1e6
    busy = made.job.busy_ranks
    beside = f" with {counted(busy, 'busy rank')} on its host" if busy > 1 else " alone"
    step = f"step of a rank{beside} {1e3 * work.step_s:.1f} ms"
    return f"{work.name}: {counted(len(work.sizes), 'gradient')}, {megabytes:.1f} MB, {step}"


def assumptions(made: Forecast) -> str:
    """The origin of the numbers: the network, and what was measured."""
    job = made.job
    link = f"link: {job.link.name} ({job.link.origin})"
    known = ", ".join(f"{counted(hosts, 'host')} {100 * value:.1f}%" for hosts, value in job.known)
    return link + (f"; measured efficiency: {known}" if known else "; no efficiency was measured on this cluster")


def hints(made: Forecast) -> Iterator[str]:
    """Warnings and acts that stand before all numbers; none if these can be trusted."""
    job = made.job
    if made.miss:
        yield (
            f"warning: the model cannot explain what was measured: it is {made.miss:.0f} points off, so each band is "
            "wider by that\nhint: measure again; the input or another job may limit the speed, not the network"
        )
    if job.is_recorded and job.busy_ranks != job.ranks_a_host:
        yield (
            f"warning: the profile is of {counted(job.busy_ranks, 'busy rank')} on its host, not of {job.ranks_a_host}"
            f"\nhint: horovodrun -np {job.ranks_a_host} --profile FILE records a rank with busy neighbours"
        )
    if job.most_waited > LEAST_TOLD:
        yield (
            f"warning: a measured rank waited for a core {100 * job.most_waited:.0f}% of its time, so both ends of "
            "each band move out by as many points\nhint: measure again while nothing else runs on the hosts"
        )
    if warning := sparse_in_words(job.sparse):
        yield warning
    if not made.is_wide or made.miss:
        return
    wide = f"hint: a band is wider than {WIDE_POINTS:.0f} points: measure"
    if job.way == "direct" and job.link.hosts == 1:
        yield f"{wide} the link: horovodrun -np 2 -H host1:1,host2:1 python -m horovod.bench link"
    else:
        yield f"{wide} the efficiency on {_next_hosts(job)}"


def _next_hosts(job: Job) -> str:
    give = "of this cluster, and give it by --calibrate, such as"
    if job.known:
        return f"{counted(2 * job.known_hosts, 'host')} {give} {2 * job.known_hosts}:91"
    if job.ranks_a_host == 1:  # one host is 100%
        return f"2 hosts {give} 2:91"
    return f"1 and 2 hosts {give} 1:97.5,2:91"


def _rows(made: Forecast) -> Iterator[str]:
    rate = f" {'samples/s':>10}" if made.job.batch is not None else ""
    names = "  ".join(CAUSES)
    yield f"{'hosts':>6} {'ranks':>6} {'efficiency':>11} {'90% band':>14}{rate}  {names}"
    for row in made.rows:
        rate = f" {row.rate:10.1f}" if row.rate is not None else ""
        causes = "  ".join(f"{row.causes[name]:>{len(name)}.1f}" for name in CAUSES)
        limit = f"  <- {row.limit}" if row.limit else ""
        yield f"{row.hosts:6d} {row.ranks:6d} {row.band.middle:10.1f}% {_of(row.band):>14}{rate}  {causes}{limit}"
    yield "The columns: points of efficiency lost to one cause. Causes overlap, so the columns do not add up."


def _of(band: Band) -> str:
    return f"{band.low:.1f} to {band.high:.1f}"


def _gains(made: Forecast) -> Iterator[str]:
    if made.what_ifs:
        yield f"On {counted(made.what_ifs[0].hosts, 'host')}, points of efficiency gained by"
    width = max((len(one.change) for one in made.what_ifs), default=0)
    for one in made.what_ifs:
        warning = f"  ({_CHANGES_TRAINING})" if one.changes_training else ""
        yield f"  {one.change:{width}} {one.gain.middle:+6.1f} {_of(one.gain):>14}{warning}"


def _errors(made: Forecast) -> Iterator[str]:
    if made.errors:
        yield ""
        yield "The model is off what was measured by"
        for hosts, error in made.errors:
            yield f"  {counted(hosts, 'host')}: {round(error, 1) + 0.0:+.1f} points"


def as_json(made: Forecast) -> dict[str, Any]:
    """Efficiencies and gains in points, 0 to 100; times in milliseconds."""
    job, work = made.job, made.job.work
    return {
        "version": 1,
        "model": work.name,
        "gradients": len(work.sizes),
        "bytes": int(work.sizes.sum()),
        "sparse_gradients": job.sparse[0],
        "step_ms": 1e3 * work.step_s,
        "link": {"name": job.link.name, "gbit": job.link.gbit, "source": job.link.source, "hosts": job.link.hosts},
        "measured": [{"hosts": hosts, "efficiency": 100 * value} for hosts, value in job.known],
        "errors": [{"hosts": hosts, "points": error} for hosts, error in made.errors],
        "is_wide": made.is_wide,
        "miss": made.miss,
        "rows": [_row_as_json(row) for row in made.rows],
        "what_ifs": [
            {
                "change": one.change,
                "hosts": one.hosts,
                **_band_as_json("gain", one.gain),
                "changes_training": one.changes_training,
            }
            for one in made.what_ifs
        ],
    }


def _row_as_json(row: Row) -> dict[str, Any]:
    return {
        "hosts": row.hosts,
        "ranks": row.ranks,
        **_band_as_json("efficiency", row.band),
        "samples_per_s": row.rate,
        "limit": row.limit or None,
        "causes": row.causes,
    }


def _band_as_json(name: str, band: Band) -> dict[str, Any]:
    return {name: band.middle, "band": [band.low, band.high]}
