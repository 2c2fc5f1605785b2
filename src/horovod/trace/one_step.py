# SPDX-License-Identifier: Apache-2.0
"""The spans of one step of ordinary length, on all ranks: a second reading of the file, for the picture."""

from __future__ import annotations

import collections
import statistics
from typing import Any

from horovod.trace.ranks import WAIT, Rank
from horovod.trace.reader import Reader
from horovod.trace.waits import Arrivals

__all__ = ["LANES", "one_step"]

# The rows of a rank in the picture, from the top.
LANES = ("script blocked", "waits for ranks", "operation runs")
_SPANS = 400  # in a lane


def one_step(reader: Reader) -> dict[str, Any] | None:
    """The step's length and, by rank and lane, spans as pairs of milliseconds from its begin; None without steps."""
    numbers = reader.ranks()
    first = Rank(numbers[0], Arrivals(numbers[:1]))
    for event in reader.events():
        if event["pid"] == first.rank:
            first.take(event)
    lengths = first.step_lengths_us()
    if not lengths:
        return None
    # Of the later half: the first steps are slower.
    later = range(len(lengths) // 2, len(lengths))
    middle = statistics.median_low([lengths[number] for number in later])
    number = next(number for number in later if lengths[number] == middle)
    begin = first.steps[0][number]
    window = begin, begin + middle
    lanes: dict[int, dict[str, list[list[float]]]] = {rank: {lane: [] for lane in LANES} for rank in numbers}
    depth: collections.Counter[tuple[int, str]] = collections.Counter()
    since: dict[tuple[int, str], float] = {}
    for event in reader.events():
        lane = _lane_of(event)
        if lane is None or event["pid"] not in lanes:
            continue
        key, now = (event["pid"], lane), float(event.get("ts", 0.0))
        if event["ph"] == "B":
            depth[key] += 1
            if depth[key] == 1:
                since[key] = now
        elif depth[key] > 0:
            depth[key] -= 1
            if depth[key] == 0 and now >= window[0] and since[key] <= window[1]:
                span = [(min(max(at, window[0]), window[1]) - begin) / 1e3 for at in (since[key], now)]
                lanes[key[0]][lane].append([round(at, 4) for at in span])
    for of_rank in lanes.values():
        for lane in LANES:
            of_rank[lane] = of_rank[lane][:_SPANS]
    return {"number": number, "length_ms": middle / 1e3, "ranks": lanes}


def _lane_of(event: dict[str, Any]) -> str | None:
    name = event["name"]
    if event["ph"] not in ("B", "E") or name == "QUEUE" or "_" in name.removeprefix("NEGOTIATE_"):
        return None  # inside of another span
    if name == WAIT:
        return LANES[0]
    return LANES[1] if name.startswith("NEGOTIATE_") else LANES[2]
