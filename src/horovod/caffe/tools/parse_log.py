# SPDX-License-Identifier: Apache-2.0
"""Turns the log of a training into two tables: parse_log [--delimiter=,] LOGFILE OUTPUT_FOLDER.

LOGFILE.train and LOGFILE.test have the columns NumIters, Seconds and LearningRate, then the outputs' names.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from horovod.caffe.errors import CaffeError
from horovod.caffe.files import replacing
from horovod.caffe.flags import Flags, guarded

__all__ = ["main", "parse"]

Row = dict[str, float]
_NUMBER = r"[-+]?(?:\d*\.?\d+(?:[eE][-+]?\d+)?|nan|inf)"
_ITERATION = re.compile(r"Iteration (\d+)")
_OUTPUT = re.compile(rf"(Train|Test) net output #(\d+): (\S+) = ({_NUMBER})")
_RATE = re.compile(rf"lr = ({_NUMBER})")
_TIME = re.compile(r"[IWEF](\d{4})?(\d{4} \d\d:\d\d:\d\d\.\d+)")


def parse(lines: Iterable[str]) -> tuple[list[Row], list[Row]]:
    """The rows of training and of tests, in the order of the log."""
    tables: dict[str, list[Row]] = {"Train": [], "Test": []}
    iteration, rate, start, now = -1, float("nan"), None, 0.0
    for line in lines:
        if found := _TIME.search(line):
            moment = datetime.strptime(f"{found[1] or 2000}{found[2]}", "%Y%m%d %H:%M:%S.%f")
            start = moment if start is None and "Solving" in line else start
            now = (moment - start).total_seconds() if start else 0.0
        if found := _ITERATION.search(line):
            iteration = int(found[1])
        if iteration < 0:
            continue
        if found := _RATE.search(line):
            rate = float(found[1])
            for row in tables["Train"][-1:]:
                if row["NumIters"] == iteration:
                    row["LearningRate"] = rate
        if found := _OUTPUT.search(line):
            rows = tables[found[1]]
            if not rows or rows[-1]["NumIters"] != iteration or found[2] == "0":
                rows.append({"NumIters": iteration, "Seconds": now, "LearningRate": rate})
            rows[-1][found[3]] = float(found[4])
    return tables["Train"], tables["Test"]


def _write(path: Path, rows: list[Row], delimiter: str) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["NumIters", "Seconds", "LearningRate"]
    with replacing(str(path)) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def _main(arguments: Sequence[str]) -> int:
    parser = Flags("parse_log [--delimiter=,] LOGFILE OUTPUT_FOLDER")
    parser.flag("delimiter", ",", "what stands between the columns")
    parser.add_argument("logfile")
    parser.add_argument("folder")
    flags = parser.read(arguments)
    log = Path(flags.logfile)
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            tables = parse(lines)
    except OSError as error:
        raise CaffeError(f"{log}: cannot be read: {error.strerror or error}") from error
    for word, rows in zip(("train", "test"), tables, strict=True):
        _write(Path(flags.folder) / f"{log.name}.{word}", rows, flags.delimiter)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns the exit status."""
    return guarded(_main, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
