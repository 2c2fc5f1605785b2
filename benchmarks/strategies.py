#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.bench strategies` on 2 to 16 hosts that are namespaces of this machine: record, picture and table.

    python benchmarks/strategies.py --megabits 1000,10000    # measure: root, and nothing else may run on the machine
    python benchmarks/strategies.py --draw                   # only the picture and the table, from the record

One rank on each host; beside them the hierarchical allreduce of two ranks on each. The record is
benchmarks/records/strategies.json, the picture docs/images/strategies.svg; the table for the page is printed. All of it
takes an hour; what has been measured is kept in build/strategies.json, and `--go-on` measures only what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "records" / "strategies.json"
PARTS = ROOT / "build" / "strategies.json"  # ignored by git: the record names the commit of a tree without changes
PICTURE = ROOT / "docs" / "images" / "strategies.svg"
sys.path.insert(0, str(ROOT / "tests"))

from support.cluster import Cluster  # noqa: E402

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 340, 60, 170, 46, 40
COLORS = {
    "one parameter server": "#b5533c",
    "gather and broadcast": "#c98a2b",
    "a server on each host": "#7a5c99",
    "ring": "#3c6fb5",
    "direct exchange": "#0b6e4f",
    "hierarchical": "#55a630",
}
Row = dict[str, Any]


def measure(hosts: int, megabits: float, rounds: int) -> list[Row]:
    """The records of one rank and of two on each host; 0 megabits: as fast as the machine can."""
    records = []
    with tempfile.TemporaryDirectory() as folder, Cluster(hosts, shared=[folder]) as made:
        for host in made:
            if megabits:
                host.rate(megabits)
        for ranks in (1, 2):
            names = ",".join(f"{host.name}:{ranks}" for host in made)
            command = [sys.executable, "-m", "horovod.launcher", "-np", str(hosts * ranks), "-H", names]
            command += [sys.executable, "-m", "horovod.bench", "strategies", "--rounds", str(rounds)]
            command += ["--json", f"{ranks}.json"] + (["--only-allreduce"] if ranks == 2 else [])
            environment = {**os.environ, "TMPDIR": "/tmp"}
            subprocess.run(made[0].command(*command, directory=folder), env=environment, check=True)
            records.append({**json.loads(Path(f"{folder}/{ranks}.json").read_text()), "megabits": megabits})
    return records


def measure_all(pairs: list[tuple[int, float]], rounds: int, go_on: bool) -> list[Row]:
    """Of hosts and megabits, step by step."""
    measured: list[Row] = json.loads(PARTS.read_text()) if go_on and PARTS.exists() else []
    PARTS.parent.mkdir(exist_ok=True)
    for index, (hosts, megabits) in enumerate(pairs):
        if not any((record["hosts"], record["megabits"]) == (hosts, megabits) for record in measured):
            print(f"[{index + 1}/{len(pairs)}] {hosts} hosts, {megabits:g} Mbit/s", flush=True)
            measured += measure(hosts, megabits, rounds)
            PARTS.write_text(json.dumps(measured, indent=1) + "\n")
    return measured


def rows(records: list[Row], megabits: float) -> dict[str, dict[int, Row]]:
    """By strategy and hosts: the medians, of bytes in units of the gradients' own."""
    found: dict[str, dict[int, Row]] = {}
    for record in (one for one in records if one["megabits"] == megabits):
        for row in record["rows"]:
            shares = statistics.median(row["bytes"]) / record["bytes"]
            one = {"shares": shares, "seconds": statistics.median(row["seconds"])}
            found.setdefault(row["strategy"], {})[record["hosts"]] = one
    return found


def table(records: list[Row]) -> str:
    rates = sorted({record["megabits"] for record in records})
    hosts = sorted({record["hosts"] for record in records})
    lines = []
    # The bytes do not depend on the rate.
    for megabits, what in [(rates[0], "shares"), *((rate, "seconds") for rate in rates if rate)]:
        unit = f"seconds at {megabits / 1000:g} Gbit/s" if what == "seconds" else "times the gradients"
        lines += [
            f"| {unit} | " + " | ".join(f"{count} hosts" for count in hosts) + " |",
            "|---" * (len(hosts) + 1) + "|",
        ]
        for name, by_hosts in rows(records, megabits).items():
            cells = [f"{by_hosts[count][what]:.2f}" for count in hosts]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def picture(records: list[Row]) -> str:
    """Bytes through the busiest link by hosts."""
    lines = rows(records, min(record["megabits"] for record in records))
    hosts = sorted({record["hosts"] for record in records})
    top = max(one["shares"] for by_hosts in lines.values() for one in by_hosts.values())

    def x(count: int) -> float:
        return LEFT + (count - hosts[0]) / max(1, hosts[-1] - hosts[0]) * (WIDTH - LEFT - RIGHT)

    def y(shares: float) -> float:
        return TOP + (1 - shares / top) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">Busiest link in one step, in sizes of the gradients</text>',
    ]
    for shares in range(0, int(top) + 1, max(1, int(top) // 5)):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(shares):.1f}" y2="{y(shares):.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{y(shares) + 4:.1f}" text-anchor="end">{shares}</text>')
    for count in hosts:
        parts.append(f'<text x="{x(count):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{count} hosts</text>')
    below = 0.0  # labels of lines that end at one place stand one above the other
    for name, by_hosts in sorted(lines.items(), key=lambda line: -line[1][hosts[-1]]["shares"]):
        points = " ".join(f"{x(count):.1f},{y(by_hosts[count]['shares']):.1f}" for count in hosts)
        below = max(below + 15, y(by_hosts[hosts[-1]]["shares"]) - 30)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[name]}" stroke-width="2.5"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{below:.1f}" fill="{COLORS[name]}">{name}</text>')
    return "\n".join([*parts, "</g>", "</svg>", ""])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--draw", action="store_true", help="draw what the record has")
    options.add_argument("--hosts", default="2,4,8,16")
    options.add_argument("--megabits", default="0", help="of each link, separated by commas; 0: unlimited (0)")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--go-on", action="store_true", help="keep what an earlier run has measured")
    arguments = options.parse_args()
    if not arguments.draw:
        pairs = [(int(h), float(m)) for m in arguments.megabits.split(",") for h in arguments.hosts.split(",")]
        measured = measure_all(pairs, arguments.rounds, arguments.go_on)
        RECORD.write_text(json.dumps(measured, indent=1) + "\n")
    records = json.loads(RECORD.read_text())
    PICTURE.write_text(picture(records))
    print(table(records))


if __name__ == "__main__":
    main()
