#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two installed versions: whole runs of `python -m horovod.bench`, interleaved A B A B on one machine.

    python benchmarks/two_versions.py OLD_PYTHON NEW_PYTHON [options] -- allreduce -np 2 --sizes 4,1M

OLD_PYTHON and NEW_PYTHON are the interpreters of two environments, which both have PyTorch, or both do not: with it the
bench calls horovod.torch, without it horovod.core, which is quicker. Prints, for each row, the median over the pairs of
the quotient old time / new time: above 1 the new version is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from horovod.bench.record import write_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", help="the Python of the old version's environment")
    parser.add_argument("new", help="the Python of the new version's environment")
    parser.add_argument("--pairs", type=int, default=9, help="how many times both are run (9)")
    parser.add_argument("--old-env", action="append", default=[], metavar="NAME=VALUE", help="a setting of the old one")
    parser.add_argument("--new-env", action="append", default=[], metavar="NAME=VALUE", help="a setting of the new one")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    parser.add_argument("bench", nargs="+", help="the benchmark and its options")
    options = parser.parse_args()

    if has_torch(options.old) != has_torch(options.new):
        parser.error("one environment has PyTorch and the other has not\nhint: install it in both, or in neither")
    seconds: dict[int, dict[str, list[float]]] = {}
    sides = {"old": (options.old, options.old_env), "new": (options.new, options.new_env)}
    for pair in range(options.pairs):
        for side in sides if pair % 2 == 0 else reversed(sides):
            for size, value in medians(*sides[side], options.bench).items():
                seconds.setdefault(size, {"old": [], "new": []})[side].append(value)
        print(f"pair {pair + 1} of {options.pairs}", flush=True)
    rows = [{"bytes": size, "seconds": times} for size, times in sorted(seconds.items())]
    for row in rows:
        print(described(row))
    if options.json:
        write_record(options.json, ("python", "benchmarks/two_versions.py"), {"rows": rows})


def has_torch(python: str) -> bool:
    """Whether this interpreter finds PyTorch."""
    found = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([python, "-c", found], check=False).returncode == 0


def medians(python: str, settings: list[str], bench: list[str]) -> dict[int, float]:
    """The median seconds of one call, by bytes, of one run."""
    environment = {**os.environ, **dict(one.split("=", 1) for one in settings)}
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [python, "-m", "horovod.bench", *bench, "--no-gloo", "--json", str(record)]
        while not record.exists():  # a run whose cache-line hop changed writes none, and is repeated
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0 and "the cache-line hop changed" not in done.stderr:
                raise SystemExit(done.stdout + done.stderr)
        rows = json.loads(record.read_text())["rows"]
    return {row["bytes"]: statistics.median(row["seconds"]["hvd"]) for row in rows}


def described(row: dict[str, Any]) -> str:
    ratios = [old / new for old, new in zip(row["seconds"]["old"], row["seconds"]["new"], strict=True)]
    times = [statistics.median(row["seconds"][side]) * 1e6 for side in ("old", "new")]
    return (
        f"{row['bytes']:>12} bytes: {times[0]:>12.1f} us, {times[1]:>12.1f} us; old / new "
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
