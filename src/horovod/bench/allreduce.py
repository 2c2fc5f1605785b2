# SPDX-License-Identifier: Apache-2.0
"""Latency and bandwidth of an in-place float32 sum by size, beside torch.distributed's Gloo on the same buffers."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from horovod.bench.paired import RATIO_NOTE, Buffers, gloo, measure, operations, ratio
from horovod.bench.record import Session

__all__ = ["DEFAULT_SIZES", "run"]

DEFAULT_SIZES = "4,1K,64K,1M,16M,64M"


def run(arguments: argparse.Namespace) -> int:
    """Runs in every rank; rank 0 prints the table and writes the record. Returns the exit code."""
    session = Session(arguments.json)
    hvd = operations()
    with gloo(not arguments.no_gloo) as (dist, why_not):
        session.begin(why_not)
        session.print(f"{'bytes':>12} {'hvd us':>12} {'GB/s':>8} {'gloo us':>12} {'gloo/hvd':>9}")
        for size in arguments.sizes:
            buffers = Buffers([size // 4])
            (tensor,) = buffers.tensors
            sides = {"hvd": lambda: hvd.allreduce_(tensor, name=f"bench.{size}", op=hvd.Sum)}  # noqa: B023
            if dist is not None:
                sides["gloo"] = lambda: dist.all_reduce(tensor)  # noqa: B023
            row = {"bytes": size, **measure(buffers, sides, arguments.rounds, arguments.seconds)}
            session.rows.append(row)
            session.print(_line(row))
        if dist is not None:
            session.print(RATIO_NOTE)
        return session.end()


def _line(row: dict[str, Any]) -> str:
    seconds = row["seconds"]
    ours = statistics.median(seconds["hvd"])
    text = f"{row['bytes']:>12} {ours * 1e6:>12.1f} {row['bytes'] / ours / 1e9:>8.2f}"
    if "gloo" in seconds:
        text += f" {statistics.median(seconds['gloo']) * 1e6:>12.1f} {ratio(seconds, 'gloo'):>9.2f}"
    return text
