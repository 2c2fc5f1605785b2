# SPDX-License-Identifier: Apache-2.0
"""The numbers of a timeline, in a dict as --json writes it. Times are in seconds or, by name, milliseconds."""

from __future__ import annotations

import collections
import math
import statistics
from typing import Any

from horovod.core.wording import on_one_line
from horovod.trace.ranks import Rank
from horovod.trace.reader import NotATimelineError, Reader
from horovod.trace.waits import Arrivals

__all__ = ["STEP_KEYS", "difference", "summarize"]

_TENSORS = 100  # with the longest exposed time
_OPEN = 5  # spans of each rank that had not ended
_BARS = 240  # of the picture of all steps
STEP_KEYS = ("for_ranks_ms", "for_data_ms", "rest_ms")
_UNITS = ("B", "KiB", "MiB", "GiB")


def summarize(reader: Reader) -> dict[str, Any]:
    """Reads the whole file. Raises NotATimelineError if no rank has written into it."""
    numbers = reader.ranks()
    if not numbers:
        raise NotATimelineError(
            f"{on_one_line(reader.path)} has no events\nhint: record a script that calls an operation of Horovod"
        )
    arrivals = Arrivals(numbers)
    ranks = {number: Rank(number, arrivals) for number in numbers}
    for event in reader.events():
        if event["pid"] in ranks:
            ranks[event["pid"]].take(event)
    arrivals.finish()
    them = list(ranks.values())
    first = min((rank.first_us for rank in them if rank.first_us), default=0.0)
    last = max(rank.last_us for rank in them)
    absent = arrivals.unfinished([call for rank in them for call in rank.waiting()], last)
    lengths = [length / 1e3 for rank in them for length in rank.step_lengths_us()]
    return {
        "file": reader.path,
        "duration_s": _seconds(last - first),
        "steps": {
            "count": max(len(rank.steps[0]) for rank in them),
            "median_ms": round(statistics.median(lengths), 3) if lengths else None,
            "shortest_ms": round(min(lengths), 3) if lengths else None,
            "longest_ms": round(max(lengths), 3) if lengths else None,
        },
        "knows_exposed": any(rank.has_waits for rank in them),
        "ranks": [_of_rank(rank, arrivals) for rank in them],
        "tensors": _of_tensors(them, arrivals),
        "operations": _of_operations(them),
        "sizes": _of_sizes(them[0]),
        "bars": _bars(them),
        "unfinished": [
            {"rank": rank.rank, "event": event, "tensor": tensor, "since_s": _seconds(last - begun)}
            for rank in them
            for event, tensor, begun in rank.unfinished()[:_OPEN]
        ],
        "not_called": [
            {"operation": operation, "tensor": tensor, "ranks": ranks} for (operation, tensor), ranks in absent.items()
        ],
        "is_complete": reader.is_closed and reader.torn == 0,
        "torn_lines": reader.torn,
        "lost_events": sum(rank.lost for rank in them),
    }


def difference(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of two runs: what, both values, and by how many percent the second is larger; None if that is unknown."""
    rows = []
    for what, value_of in _COMPARED:
        one, two = value_of(before), value_of(after)
        if one is None and two is None:
            continue
        percent = None if not one or two is None else round((two / one - 1) * 100, 1)
        rows.append({"what": what, "before": one, "after": two, "percent": percent})
    return rows


def _mean(key: str) -> Any:
    def value(summary: dict[str, Any]) -> float | None:
        values = [rank[key] for rank in summary["ranks"] if rank[key] is not None]
        return round(sum(values) / len(values), 6) if values else None

    return value


_COMPARED = (
    ("ranks", lambda summary: len(summary["ranks"])),
    ("duration_s", lambda summary: summary["duration_s"]),
    ("steps", lambda summary: summary["steps"]["count"]),
    ("step_median_ms", lambda summary: summary["steps"]["median_ms"]),
    ("step_longest_ms", lambda summary: summary["steps"]["longest_ms"]),
    ("communication_s", _mean("communication_s")),
    ("exposed_s", _mean("exposed_s")),
    ("exposed_for_ranks_s", _mean("exposed_for_ranks_s")),
    ("exposed_for_data_s", _mean("exposed_for_data_s")),
    ("waited_s", _mean("waited_s")),
    ("bytes", lambda summary: max((row["bytes"] for row in summary["operations"]), default=0)),
)


def _seconds(microseconds: float) -> float:
    return round(microseconds / 1e6, 6)


def _of_rank(rank: Rank, arrivals: Arrivals) -> dict[str, Any]:
    late = arrivals.by_rank[rank.rank]
    busy = rank.busy.until(rank.last_us)
    exposed = min(rank.exposed.until(rank.last_us), busy)
    known = rank.has_waits
    return {
        "rank": rank.rank,
        "steps": len(rank.steps[0]),
        "communication_s": _seconds(busy),
        "exposed_s": _seconds(exposed) if known else None,
        "exposed_for_ranks_s": _seconds(rank.for_ranks_us) if known else None,
        "exposed_for_data_s": _seconds(rank.for_data_us) if known else None,
        "hidden_s": _seconds(busy - exposed) if known else None,
        "waited_s": _seconds(late.waited_us),
        "agreeing_s": _seconds(late.agreeing_us),
        "last_times": late.times,
        "others_waited_s": _seconds(late.caused_us),
        "longest_wait_s": _seconds(late.longest_us),
    }


def _of_tensors(ranks: list[Rank], arrivals: Arrivals) -> list[dict[str, Any]]:
    exposed: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for rank in ranks:
        for name, (microseconds, count) in rank.tensors.items():
            exposed[name] += microseconds  # type: ignore[assignment]
            times[name] += int(count)
    names = [name for name, _ in exposed.most_common(_TENSORS)] or [
        name for name, _ in arrivals.by_tensor.most_common(_TENSORS)
    ]
    return [
        {
            "name": name,
            "exposed_s": _seconds(exposed[name]) if times[name] else None,
            "times": times[name],
            "waited_s": _seconds(arrivals.by_tensor[name]),
        }
        for name in names
    ]


def _of_operations(ranks: list[Rank]) -> list[dict[str, Any]]:
    """Of the rank that has called each most often."""
    rows = []
    for name in sorted({name for rank in ranks for name in rank.operations}):
        found = max((rank.operations[name] for rank in ranks if name in rank.operations), key=lambda one: one.times)
        rows.append(
            {
                "operation": name,
                "times": found.times,
                "negotiating_s": _seconds(found.negotiating_us),
                "queued_s": _seconds(found.queued_us),
                "data_s": _seconds(found.data_us),
                "bytes": found.bytes,
            }
        )
    return rows


def _of_sizes(rank: Rank) -> list[dict[str, Any]]:
    """Calls by the size of their tensor, in classes of a factor of 4."""
    classes: dict[int, list[int]] = collections.defaultdict(lambda: [0, 0])
    for size, times in rank.sizes.items():
        upper = 0 if size == 0 else 4 ** max(3, math.ceil(math.log(size, 4)))
        classes[upper][0] += times
        classes[upper][1] += size * times
    return [
        {"up_to_bytes": upper, "label": _size(upper), "times": times, "bytes": total}
        for upper, (times, total) in sorted(classes.items())
    ]


def _size(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}"


def _bars(ranks: list[Rank]) -> list[dict[str, Any]]:
    """The steps, several as one if there are many: means over ranks and steps."""
    count = min((len(rank.steps[0]) - 1 for rank in ranks if len(rank.steps[0]) > 1), default=0)
    width = max(1, math.ceil(count / _BARS))
    bars = []
    for start in range(0, count, width):
        end = min(start + width, count)
        sums = [0.0, 0.0, 0.0]
        of = [rank for rank in ranks if len(rank.steps[0]) > 1]
        for rank in of:
            whole, _, for_ranks, for_data = (column[end] - column[start] for column in rank.steps)
            for place, value in enumerate((for_ranks, for_data, max(0.0, whole - for_ranks - for_data))):
                sums[place] += value / 1e3 / len(of) / (end - start)
        bars.append(
            {"first": start, "steps": end - start, **dict(zip(STEP_KEYS, (round(x, 4) for x in sums), strict=True))}
        )
    return bars
