# SPDX-License-Identifier: Apache-2.0
"""Latency and bandwidth of an in-place float32 sum by size, beside torch.distributed's Gloo on the same buffers."""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.bench.paired import RATIO_NOTE, Buffers, gloo, measure, operations, ratio
from horovod.bench.record import Session

__all__ = ["DEFAULT_SIZES", "by_size", "run"]

DEFAULT_SIZES = "4,1K,64K,1M,16M,64M"


def run(arguments: argparse.Namespace) -> int:
    """Runs in every rank; rank 0 prints the table and writes the record. Returns the exit code."""
    session = Session(arguments.json, any_hop=arguments.any_hop)
    with gloo(not arguments.no_gloo) as (dist, why_not):
        session.begin(why_not)
        peers = {"gloo": dist.all_reduce} if dist is not None else {}
        by_size(session, arguments.sizes, operations(), peers, arguments.rounds, arguments.seconds)
        return session.end()


def by_size(
    session: Session,
    sizes: Sequence[int],
    hvd: Any,
    peers: Mapping[str, Callable[[Any], object]],
    rounds: int,
    seconds: float,
) -> None:
    """Measures a sum of each size in bytes, ours and the peers' in turns; prints the table and fills the rows.

    peers: by name, what adds up a tensor in place.
    """
    titles = "".join(f" {name + ' us':>12} {name + '/hvd':>{_width(name)}}" for name in peers)
    session.print(f"{'bytes':>12} {'hvd us':>12} {'GB/s':>8}{titles}")
    for size in sizes:
        buffers = Buffers([size // 4])
        (tensor,) = buffers.tensors
        sides = {"hvd": lambda: hvd.allreduce_(tensor, name=f"bench.{size}", op=hvd.Sum)}  # noqa: B023
        sides |= {name: functools.partial(call, tensor) for name, call in peers.items()}
        row = {"bytes": size, **measure(buffers, sides, rounds, seconds)}
        session.rows.append(row)
        session.print(_line(row))
    if peers:
        session.print(RATIO_NOTE)


def _width(peer: str) -> int:
    return max(9, len(f"{peer}/hvd"))


def _line(row: dict[str, Any]) -> str:
    seconds = row["seconds"]
    ours = statistics.median(seconds["hvd"])
    text = f"{row['bytes']:>12} {ours * 1e6:>12.1f} {row['bytes'] / ours / 1e9:>8.2f}"
    for name in list(seconds)[1:]:
        text += f" {statistics.median(seconds[name]) * 1e6:>12.1f} {ratio(seconds, name):>{_width(name)}.2f}"
    return text
