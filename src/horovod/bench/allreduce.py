# SPDX-License-Identifier: Apache-2.0
"""Latency and bandwidth of an in-place float32 sum by size, beside torch.distributed's Gloo on the same buffers.

Words. A *call* is one allreduce, timed alone; the buffer is filled again before it, outside of the time. A *round* is a
number of calls of one side and then of the other (A B A B); its time is the median of its calls, the slowest rank's.
The ratio is the median over rounds of Gloo's time divided by Horovod's: machines drift, pairs drift less. Every result
is checked: its ends after each call, all of it after each round.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from horovod import core as hvd
from horovod.bench.record import write_record
from horovod.core import context

DEFAULT_SIZES = "4,1K,64K,1M,16M,64M"
MAX_CALLS = 2000

Reduce = Callable[[], None]
Array = np.ndarray[Any, Any]


def run(arguments: argparse.Namespace) -> None:
    """Runs in every rank; rank 0 prints the table and writes the record."""
    hvd.init()
    with _gloo(not arguments.no_gloo) as (reduce_by_gloo, why_not):
        before = hvd.statistics()
        rows = []
        if hvd.rank() == 0:
            print(f"{hvd.size()} ranks, {_described(before)}")
            if why_not:
                print(f"Gloo: not run, {why_not}")
            print(f"{'bytes':>12} {'hvd us':>12} {'GB/s':>8} {'gloo us':>12} {'gloo/hvd':>9}", flush=True)
        for size in arguments.sizes:
            row = _measured(size, arguments, reduce_by_gloo)
            rows.append(row)
            if hvd.rank() == 0:
                print(_line(row), flush=True)
        after = hvd.statistics()
    if hvd.rank() == 0:
        print(f"cache-line hop before {before.get('hop_ns')} ns, after {after.get('hop_ns')} ns")
        if arguments.json:
            write_record(
                arguments.json, {"ranks": hvd.size(), "before": before, "after": after, "gloo": why_not, "rows": rows}
            )
            print(f"record written to {arguments.json}")


@contextlib.contextmanager
def _gloo(wanted: bool) -> Iterator[tuple[Callable[[Array], Reduce] | None, str]]:
    """Makes Gloo's side from a buffer, or None and the reason why there is none."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        yield None, "torch is not installed"
        return
    if not wanted:
        yield None, "--no-gloo"
        return
    rendezvous = context.current().world.rendezvous
    address = rendezvous.local_address() if rendezvous is not None else "127.0.0.1"
    store = dist.TCPStore(address, 0, hvd.size(), is_master=True, wait_for_workers=False) if hvd.rank() == 0 else None
    address, port = hvd.broadcast_object((address, store.port) if store is not None else None, 0)
    store = store or dist.TCPStore(address, port, hvd.size(), is_master=False)
    dist.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())

    def side(buffer: Array) -> Reduce:
        tensor = torch.from_numpy(buffer)
        return lambda: dist.all_reduce(tensor)

    try:
        yield side, ""
    finally:
        hvd.barrier()
        dist.destroy_process_group()


def _measured(
    size: int, arguments: argparse.Namespace, reduce_by_gloo: Callable[[Array], Reduce] | None
) -> dict[str, Any]:
    buffer = np.empty(size // 4, np.float32)
    sides: dict[str, Reduce] = {"hvd": lambda: hvd.allreduce_(buffer, name=f"bench.{size}", op=hvd.Sum)}
    if reduce_by_gloo is not None:
        sides["gloo"] = reduce_by_gloo(buffer)
    # Warm-up also says how many calls make a round; all ranks must make equally many.
    calls = {}
    for name, reduce in sides.items():
        seconds = max(_round(buffer, reduce, 3))
        calls[name] = int(hvd.broadcast_object(min(MAX_CALLS, max(3, int(arguments.seconds / seconds))), 0))
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, reduce in sides.items():
            mine = statistics.median(_round(buffer, reduce, calls[name]))
            slowest = hvd.allreduce(np.array(mine), op=hvd.Max)
            rounds[name].append(float(slowest))
    return {"bytes": size, "calls": calls, "seconds": rounds}


def _round(buffer: Array, reduce: Reduce, calls: int) -> list[float]:
    """Times `calls` calls. Raises where a result is wrong."""
    expected = hvd.size() * (hvd.size() + 1) / 2
    seconds = []
    for _ in range(calls):
        buffer.fill(hvd.rank() + 1)
        start = time.perf_counter()
        reduce()
        seconds.append(time.perf_counter() - start)
        if buffer[0] != expected or buffer[-1] != expected:
            raise AssertionError(f"rank {hvd.rank()}: expected {expected}, seen {buffer[0]} and {buffer[-1]}")
    if not np.all(buffer == expected):
        raise AssertionError(f"rank {hvd.rank()}: expected {expected} in all {buffer.size} elements")
    return seconds


def _line(row: dict[str, Any]) -> str:
    seconds = row["seconds"]
    ours = statistics.median(seconds["hvd"])
    text = f"{row['bytes']:>12} {ours * 1e6:>12.1f} {row['bytes'] / ours / 1e9:>8.2f}"
    if "gloo" in seconds:
        ratio = statistics.median(b / a for a, b in zip(seconds["hvd"], seconds["gloo"], strict=True))
        text += f" {statistics.median(seconds['gloo']) * 1e6:>12.1f} {ratio:>9.2f}"
    return text


def _described(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {facts[name]}" for name in ("transport", "isa", "stores", "hop_ns") if name in facts)
