# SPDX-License-Identifier: Apache-2.0
"""The summary of a job, which horovodrun prints at its end. Pure."""

from __future__ import annotations

import datetime
import statistics
from typing import Any

from horovod.launcher.watch.facts import JobFacts, since_init
from horovod.launcher.watch.verdict import LEAST_SHARE, judge, stuck

__all__ = ["summary"]


def summary(view: dict[str, Any], seconds: float) -> list[str]:
    """The lines; none if no rank has sent a status. `seconds`: how long the job ran.

    `view`: of Statuses.view, whole.
    """
    facts = since_init(view)
    ranks = facts.ranks.values()
    if not ranks:
        return []
    steps = max(one.steps_total for one in ranks) + sum(round(one["steps"]) for one in facts.past)
    moved = max(one.bytes_per_s * one.span_s for one in ranks) + sum(one["bytes"] for one in facts.past)
    lines = [
        f"{datetime.timedelta(seconds=round(seconds))}, {steps:,} {'step' if steps == 1 else 'steps'}, "
        f"{_size(moved)} reduced on each rank",
        f"a typical rank spent {_percent(statistics.median(one.lost_share for one in ranks))} of its time waiting for "
        f"other ranks and {_percent(statistics.median(one.data_share for one in ranks))} waiting for data",
    ]
    if hung := stuck(facts):
        lines.append(f"at the end, {hung}")
    else:
        lines += _who_was_last(facts)
        verdict = judge(facts, sustained=False)
        lines += [] if verdict is None else [str(verdict)]
    if facts.past:
        times, worlds = ("once", "") if len(facts.past) == 1 else (f"{len(facts.past)} times", " each time")
        lines.append(f"workers left or joined {times}, and training went on in a new world{worlds}")
    return lines


def _who_was_last(facts: JobFacts) -> list[str]:
    """The rank for which the others waited longest, if that is worth a word."""
    waits: dict[int, float] = {}
    for one in facts.ranks.values():
        for rank, seconds in one.waits.items():
            waits[rank] = waits.get(rank, 0.0) + seconds
    if not waits:
        return []
    worst = max(waits, key=waits.__getitem__)
    share = waits[worst] / sum(waits.values())
    others = [one.lost_share for one in facts.ranks.values() if one.rank != worst]
    if not others or share * statistics.median(others) < LEAST_SHARE:
        return []
    host = facts.ranks[worst].host if worst in facts.ranks else "?"
    return [f"the others waited longest for rank {worst} (host {host}): {_percent(share)} of all waiting"]


def _size(count: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:.0f} bytes"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.01 or share == 0 else "under 1%"
