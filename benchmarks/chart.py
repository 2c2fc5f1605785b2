#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws records as an SVG: time by size, both axes logarithmic.

They are one of `python -m horovod.bench allreduce` beside Gloo, two of benchmarks/mpi.py, and for two dots each one of
benchmarks/tensorflow_strategy.py and one of benchmarks/torch_distributed.py, whose step with FSDP2 is taken. Only one
MPI runs in a process, so each was measured beside this library in a run of its own. Its line is this library's line
times the median ratio of that run.

python benchmarks/chart.py docs/images/allreduce.svg
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent / "records"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 70, 120, 46, 44
LABEL = 15  # from one name at the end of a line to the next
SIDES = {"hvd": ("this library", "#0b6e4f"), "gloo": ("Gloo", "#b5533c")}
MPIS = {"mpi/shm-mpich": ("MPICH", "#8a6d00"), "mpi/shm-openmpi": ("Open MPI", "#2f5d9e")}
STEPS = {
    "horovod": ("a TensorFlow step", "#0b6e4f"),
    "strategy": ("the step with MultiWorkerMirroredStrategy", "#7a4fa3"),
}
SHARDED = "fsdp-mlp"
SHARDED_BYTES = 7_912_458 * 4
SHARDED_STEPS = {"hvd": ("a step with FSDP2", "#0b6e4f"), "gloo": ("the step on Gloo", "#b5533c")}


def main() -> None:
    target = Path(sys.argv[1])
    record, steps, tools = map(recorded, ("allreduce-np2-shm", "tensorflow-strategy-np2", "torch-distributed-np2"))
    sizes = [row["bytes"] for row in record["rows"]]
    medians = {side: [statistics.median(row["seconds"][side]) for row in record["rows"]] for side in SIDES}
    for name in MPIS:
        ratios = [ratio(row["seconds"], "mpi4py") for row in recorded(name)["rows"]]
        medians[name] = [ours * times for ours, times in zip(medians["hvd"], ratios, strict=True)]
    every = [seconds for times in medians.values() for seconds in times]
    panel = Panel(sizes, every)
    x, y = panel.x, panel.y
    title = f"Allreduce, {record['ranks']} ranks, shared memory, {record['machine']['processor']}: time of one call"
    parts = panel.axes(title)
    parts += panel.lines([(*named, medians[side]) for side, named in (SIDES | MPIS).items()])
    step = steps["rows"][0]
    sharded = next(row for row in tools["rows"] if row["case"] == SHARDED)
    for row, size, sides in (step, step["bytes"], STEPS), (sharded, SHARDED_BYTES, SHARDED_STEPS):
        for side, (name, color) in sides.items():
            at_x, at_y = x(size), y(statistics.median(row["seconds"][side]))
            parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="4.5" fill="{color}"/>')
            parts.append(f'<text x="{at_x - 9:.1f}" y="{at_y + 4:.1f}" text-anchor="end" fill="{color}">{name}</text>')
    target.write_text(picture(WIDTH, HEIGHT, parts))


def recorded(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text())


def ratio(seconds: dict[str, list[float]], peer: str) -> float:
    """How many times as long the peer takes: the median of the rounds."""
    return statistics.median(theirs / ours for theirs, ours in zip(seconds[peer], seconds["hvd"], strict=True))


class Panel:
    """Of WIDTH x HEIGHT: time in seconds by size, both axes logarithmic.

    every: all times that it must show. labels: of the sizes, by place; without them, every second one as bytes.
    """

    def __init__(self, sizes: Sequence[int], every: Sequence[float], labels: dict[int, str] | None = None) -> None:
        self.sizes = sizes
        self.labels = labels or {size: size_in_words(size) for size in sizes[::2]}
        self.low, self.high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def x(self, size: float) -> float:
        part = math.log(size / self.sizes[0]) / math.log(self.sizes[-1] / self.sizes[0])
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, seconds: float) -> float:
        return TOP + (self.high - math.log10(seconds)) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def axes(self, title: str) -> list[str]:
        parts = [
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT}" y="22" font-size="14">{title}</text>',
        ]
        for exponent in range(self.low, self.high + 1):
            at = self.y(10.0**exponent)
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{in_words(10.0**exponent)}</text>')
        for size, label in self.labels.items():
            at = self.x(size)
            parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
        return parts

    def lines(self, sides: Sequence[tuple[str, str, Sequence[float]]]) -> list[str]:
        """Name, color and a time of each size, of each line. The names stand at the ends, one below the other."""
        parts: list[str] = []
        label = 0.0
        for name, color, times in sorted(sides, key=lambda side: side[2][-1], reverse=True):
            label = max(self.y(times[-1]), label + LABEL)
            points = " ".join(f"{self.x(s):.1f},{self.y(t):.1f}" for s, t in zip(self.sizes, times, strict=True))
            parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"/>')
            parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{label + 4:.1f}" fill="{color}">{name}</text>')
        return parts


def picture(width: int, height: int, parts: Sequence[str]) -> str:
    """The whole file."""
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    return "\n".join([begin, '<g font-family="sans-serif" font-size="12">', *parts, "</g>", "</svg>", ""])


def in_words(seconds: float) -> str:
    return f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms" if seconds < 1 else f"{seconds:g} s"


def size_in_words(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


if __name__ == "__main__":
    main()
