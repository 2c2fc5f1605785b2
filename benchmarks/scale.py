#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What many hosts cost, before and with groups of hosts and a tree of leaders: a record and a chart.

A batch of 1 MiB between hosts of one rank, in virtual time (build/native/bench_simulated: 10 Gbit/s, 30 us of latency,
3 us of a processor for a message at each end; above 1,024 hosts by the simulator's formula); and the processor time of
rank 0's leader in a steady step of 161 names and 8 ranks a host, measured (build/native/bench_rank0, without sockets).
Both programs are built by `TARGET="bench_simulated bench_rank0" tools/build-native build/native`.

    python benchmarks/scale.py benchmarks/records/scale.json docs/images/scale.svg
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from chart import HEIGHT, WIDTH, Panel, picture

from horovod.bench.record import write_record

BUILT = Path("build/native")
BYTES = 1 << 20
NAMES, LOCAL_SIZE = 161, 8
EXCHANGING = (2, 4, 16, 64, 256, 512, 1024, 4000, 12500)  # above 1,024 by a formula
LED = (2, 4, 16, 64, 256, 512, 1250, 4000, 12500)
BATCH = {"before": ("without groups", "#b5533c"), "now": ("groups of hosts", "#0b6e4f")}
RANK_0 = {"before": ("a star", "#b5533c"), "now": ("a tree", "#0b6e4f")}
LINK = ("the link alone", "#777")


def main() -> None:
    record, target = sys.argv[1:]
    batches = [{"hosts": hosts, **batch(hosts)} for hosts in EXCHANGING]
    steps = [{"hosts": hosts, **rank_0(hosts)} for hosts in LED]
    write_record(record, ("python", "benchmarks/scale.py"), {"batch_of_1_mib": batches, "rank_0_steady_step": steps})
    title = "A batch of 1 MiB over 10 Gbit/s, simulated (above 1,024 hosts: a formula), by hosts"
    upper = panel(title, batches, {**BATCH, "link": LINK})
    lower = panel("Rank 0's processor time for a step of 161 gradients, by hosts", steps, RANK_0)
    parts = [*upper, f'<g transform="translate(0 {HEIGHT})">', *lower, "</g>"]
    Path(target).write_text(picture(WIDTH, 2 * HEIGHT, parts))


def batch(hosts: int) -> dict[str, float]:
    """Seconds without groups, as it is now, and that the link alone needs."""
    fixed = (str(hosts), str(BYTES), "10", "30", "3")
    found = {}
    for side, group_hosts in ("before", str(hosts)), ("now", "0"):
        (whole, *_) = output("bench_simulated", *fixed, group_hosts).splitlines()
        times = re.search(r"whole +([\d.]+) ms, +[\d.]+ times the link's +([\d.]+) ms", whole)
        assert times is not None, whole
        found[side], found["link"] = float(times[1]) * 1e-3, float(times[2]) * 1e-3
    return found


def rank_0(hosts: int) -> dict[str, float]:
    """Seconds of processor of a steady step; the median of 21."""
    found = {}
    for side, star_hosts in ("before", str(hosts)), ("now", "256"):
        text = output("bench_rank0", str(hosts), str(LOCAL_SIZE), str(NAMES), star_hosts)
        step = re.search(r"steady step ([\d.]+) ms", text)
        assert step is not None, text
        found[side] = float(step[1]) * 1e-3
    return found


def output(program: str, *arguments: str) -> str:
    return subprocess.run([str(BUILT / program), *arguments], check=True, capture_output=True, text=True).stdout


def panel(title: str, rows: list[dict[str, Any]], sides: dict[str, tuple[str, str]]) -> list[str]:
    hosts = [row["hosts"] for row in rows]
    drawn = Panel(hosts, [row[side] for row in rows for side in sides], {count: f"{count:,}" for count in hosts})
    return drawn.axes(title) + drawn.lines([(*named, [row[side] for row in rows]) for side, named in sides.items()])


if __name__ == "__main__":
    main()
