# SPDX-License-Identifier: Apache-2.0
"""Long life: random operations over random process sets, named, unnamed and under names that never come back, with slow
ranks; every result is checked, and nothing grows.

SOAK_BATCHES says how many batches of operations on each transport: by default 1,000, and 12,000 with THOROUGH=1. The
first half fills caches and the allocator's arenas. Growth is judged over the second half, by work done and not by time,
so that a busy machine changes nothing. Up to 4 MiB are taken for the allocator's noise, which hides a leak of less than
eight kilobytes per batch; a long run finds it.
"""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import THOROUGH, later
from support.memory import held_kib, steady_growth_kib
from support.world import WorldPool

import horovod.core as hvd
from horovod.core import requests

BATCHES = int(os.environ.get("SOAK_BATCHES", "12000" if THOROUGH else "1000"))
LEAK_BYTES_PER_BATCH = 16  # of about six operations
NOISE_KIB = 4096
LIMIT_S = 240 + BATCHES / 20


def soak(wanted: int, seed: int) -> dict[str, Any]:
    requests.MAX_ENTRIES = 512  # its caches are full soon, and do not look like a leak while they fill
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    common, own = random.Random(seed), random.Random(seed + 1 + rank)
    sets: list[tuple[hvd.ProcessSet, list[int]]] = [(hvd.global_process_set, list(range(size)))]
    once = 0
    in_flight: set[Any] = set()

    def held() -> tuple[int, int, int]:
        threads = re.search(r"Threads:\s+(\d+)", Path("/proc/self/status").read_text())
        return held_kib(), int(threads[1]), len(os.listdir("/proc/self/fd"))  # type: ignore[index]

    def operation() -> tuple[bool, Any]:
        """(whether it has a name, start), with `start` None on a rank that is no member; start() returns (handle,
        check). All ranks draw the same numbers."""
        nonlocal once
        chosen, members = common.choice(sets)
        kind = common.choice(["allreduce", "max", "grouped", "allgather", "broadcast", "alltoall", "reducescatter"])
        naming = common.choice(["once", "again", "again", "none"])
        once += naming == "once"
        number = common.randrange(40)
        name = {"once": f"once.{once}", "again": f"{kind}.{number}", "none": None}[naming]
        rows = common.choice([1, 3, 17, 400]) * (common.randrange(1, 40) if common.random() < 0.1 else 1)
        if naming == "again":
            rows = 1 + number % 7
        root = members[number % len(members)] if naming == "again" else common.choice(members)
        if name is not None and (chosen, name) in in_flight:  # would be refused, on each rank another one
            name = None
        in_flight.add((chosen, name))
        if rank not in members:
            return name is not None, None
        total, count = sum(member + 1 for member in members), len(members)
        mine = np.full(rows, rank + 1, np.int64)

        def expect(expected: Any) -> Any:
            return lambda result: np.testing.assert_array_equal(result, expected)

        def start() -> tuple[int, Any]:
            options: dict[str, Any] = {"name": name, "process_set": chosen}
            if kind == "allreduce":
                return hvd.allreduce_async(mine, op=hvd.Sum, **options), expect(np.full(rows, total))
            if kind == "max":
                return hvd.allreduce_async(mine, op=hvd.Max, **options), expect(np.full(rows, members[-1] + 1))
            if kind == "grouped":
                handle = hvd.grouped_allreduce_async([mine, mine[:1] * 2], op=hvd.Sum, **options)

                def check(results: Any) -> None:
                    expect(np.full(rows, total))(results[0])
                    expect([2 * total])(results[1])

                return handle, check
            if kind == "allgather":
                parts = [np.full(member % 3, member) for member in members]
                return hvd.allgather_async(np.full(rank % 3, rank), **options), expect(np.concatenate(parts))
            if kind == "broadcast":
                return hvd.broadcast_async(mine, root, **options), expect(np.full(rows, root + 1))
            if kind == "alltoall":
                sent = np.repeat(np.arange(count), 2) + 100 * rank
                received = np.repeat([100 * member for member in members], 2) + members.index(rank)
                return hvd.alltoall_async(sent, splits=[2] * count, **options), lambda r: expect(received)(r[0])
            return (
                hvd.reducescatter_async(np.full(count * rows, rank + 1), op=hvd.Sum, **options),
                expect(np.full(rows, total)),
            )

        return name is not None, start

    samples = []
    for batch in range(1, wanted + 1):
        in_flight.clear()
        operations = [operation() for _ in range(common.randrange(1, 12))]
        named = [start for has_name, start in operations if has_name and start is not None]
        unnamed = [start for has_name, start in operations if not has_name and start is not None]
        own.shuffle(named)
        pending = []
        for start in named + unnamed:
            pending.append(start())
        own.shuffle(pending)
        for handle, check in pending:
            check(hvd.synchronize(handle))
        if common.random() < 0.02 and rank == common.randrange(size):
            time.sleep(0.02)  # a slow rank, as part of what is tested
        if batch % 50 == 0:
            if len(sets) > 4:
                gone, _ = sets.pop(common.randrange(1, len(sets)))
                assert hvd.remove_process_set(gone)
            members = sorted(common.sample(range(size), common.randrange(1, size)))
            if all(known != members for _, known in sets):
                sets.append((hvd.add_process_set(members), members))
            samples.append(held())
    statistics = hvd.statistics()
    hvd.shutdown()
    return {"samples": samples, "names": once, "statistics": statistics}


@pytest.mark.thorough
@pytest.mark.slow("1,000 batches")
@pytest.mark.timeout(2 * LIMIT_S + 60)
@pytest.mark.parametrize("transport", ["shm", later("tcp")])
def test_nothing_grows_while_everything_is_right(worlds: WorldPool, transport: str) -> None:
    world = worlds(4, {"HOROVOD_TRANSPORT": transport, "HOROVOD_CACHE_CAPACITY": "512"})
    problems = problems_of(world.run(soak, BATCHES, 20240601, timeout_s=LIMIT_S))
    if problems:  # what leaks does so again; the interpreter's own memory moves by megabytes now and then
        problems = problems_of(world.run(soak, BATCHES, 20240602, timeout_s=LIMIT_S))
    assert not problems, problems


def problems_of(seen: list[Any]) -> list[Any]:
    limit = max(NOISE_KIB, BATCHES / 2 * LEAK_BYTES_PER_BATCH / 1024)
    problems: list[Any] = []
    for rank, one in enumerate(seen):
        held, threads, descriptors = (np.array(column) for column in zip(*one["samples"], strict=True))
        half = len(held) // 2
        growth = steady_growth_kib(held[half:])
        print(
            f"rank {rank}: {BATCHES} batches, {one['names']} names once, {growth:.0f} KiB in the second half, "
            f"{held[-1]} KiB, {threads[-1]} threads, {descriptors[-1]} descriptors"
        )
        if growth >= limit:
            problems.append((rank, growth, held))
        if threads.max() > threads[half] + 1 or descriptors[-1] > descriptors[half]:
            problems.append((rank, threads, descriptors))
        assert one["statistics"]["in_flight"] == 0
    return problems
