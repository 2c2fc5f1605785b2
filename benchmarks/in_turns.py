# SPDX-License-Identifier: Apache-2.0
"""Times several ways of one step in turns, on all ranks."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from horovod import core


def parser_of(description: str | None, calls: int, tensors: int, width: int) -> argparse.ArgumentParser:
    """The flags that these benchmarks share, with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, what in (
        ("rounds", 15, "rounds"),
        ("calls", calls, "steps of a side in a round"),
        ("tensors", tensors, "gradients"),
        ("width", width, "rows and columns of each"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default {default})")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    return parser


def measure(sides: Mapping[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    """By side, for each round: the median seconds of a step, of the slowest rank."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            core.barrier()
            times = []
            for _ in range(calls):
                start = time.perf_counter()
                side()
                times.append(time.perf_counter() - start)
            slowest = core.allreduce(np.array(statistics.median(times)), name="slowest", op=core.Max)
            seconds[name].append(float(slowest))
    return seconds
