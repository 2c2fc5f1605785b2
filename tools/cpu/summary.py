# SPDX-License-Identifier: Apache-2.0
"""The figures of tools/cpu/check's steps in short, and a picture of them: a panel a layout, a line a peer."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from chart import HEIGHT, WIDTH, Panel, picture  # noqa: E402

COLUMNS = 2
OURS = "Horovod"
COLORS = ("#0b6e4f", "#b5533c", "#7a4fa3", "#2b6cb0", "#8a6d00", "#555555")


def summary(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By layout ("2x8": ranks x threads) a row for each size.

    "us": by peer, the median of the rounds. "ratios": by peer, its time through ours, the median of the rounds' ratios.
    "of_stream": what an allreduce must read and write (each rank's input, each rank's result) in a second, through the
    bandwidth of the fastest copy. Horovod's own figures are those beside the first peer that was measured.
    """
    copies = [
        row["copy_gb_s"]
        for step in steps
        if step["name"] == "bandwidth" and step["result"]
        for row in step["result"]["rows"]
    ]
    layouts: dict[str, Any] = {}
    for step in steps:
        named = re.fullmatch(r"(.+)-(\d+)x(\d+)", step["name"])
        if named is None or not step["result"]:
            continue
        peer, ranks, threads = named[1], int(named[2]), int(named[3])
        rows = layouts.setdefault(f"{ranks}x{threads}", {})
        for taken in step["result"]["rows"]:
            seconds = taken["seconds"]
            ours = statistics.median(seconds["hvd"])
            row = rows.setdefault(
                taken["bytes"], {"bytes": taken["bytes"], "us": {OURS: round(ours * 1e6, 1)}, "ratios": {}}
            )
            if copies:
                row.setdefault("of_stream", round(2 * ranks * taken["bytes"] / ours / 1e9 / max(copies), 3))
            for other in set(seconds) - {"hvd"}:
                row["us"][peer] = round(statistics.median(seconds[other]) * 1e6, 1)
                ratios = [b / a for a, b in zip(seconds["hvd"], seconds[other], strict=True)]
                row["ratios"][peer] = round(statistics.median(ratios), 3)
    return {layout: list(rows.values()) for layout, rows in layouts.items()}


def draw(record: dict[str, Any]) -> str:
    """An SVG without links."""
    peers = list(dict.fromkeys(peer for rows in record["summary"].values() for row in rows for peer in row["us"]))
    colors = {peer: COLORS[number % len(COLORS)] for number, peer in enumerate(peers)}
    parts = []
    for number, (layout, rows) in enumerate(record["summary"].items()):
        panel = Panel([row["bytes"] for row in rows], [us / 1e6 for row in rows for us in row["us"].values()])
        at = f"translate({number % COLUMNS * WIDTH},{number // COLUMNS * HEIGHT})"
        title = f"Time of one allreduce, ranks x threads of each: {layout.replace('x', ' x ')}"
        parts += [f'<g transform="{at}">', *panel.axes(title)]
        parts += panel.lines([(peer, colors[peer], [row["us"][peer] / 1e6 for row in rows]) for peer in rows[-1]["us"]])
        parts.append("</g>")
    panels = len(record["summary"])
    return picture(min(panels, COLUMNS) * WIDTH, -(-panels // COLUMNS) * HEIGHT, parts)
