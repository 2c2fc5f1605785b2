# SPDX-License-Identifier: Apache-2.0
"""Long life: random operations over random process sets, named, unnamed and under names that never come back, with slow
ranks; every result is checked, and nothing grows. SOAK_SECONDS says how long on each transport, 30 by default. What the
allocator keeps goes up and down by some MiB, in steps: what counts is the median growth of the eighths of the last two
thirds, and a run of less than six minutes is judged by that noise, which hides a slow leak."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.memory import steady_growth_kib
from support.world import WorldPool

SECONDS = float(os.environ.get("SOAK_SECONDS", "30"))
MAX_GROWTH_KIB_PER_MINUTE = 1024
NOISE_KIB = 4096


def soak(seconds: float, seed: int) -> dict[str, Any]:
    import random
    import re
    import time
    from pathlib import Path

    import numpy as np
    from support.memory import held_kib

    import horovod.core as hvd
    from horovod.core import requests

    requests.MAX_ENTRIES = 512  # its caches are full soon, and do not look like a leak while they fill
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    common, own = random.Random(seed), random.Random(seed + 1 + rank)
    sets: list[tuple[hvd.ProcessSet, list[int]]] = [(hvd.global_process_set, list(range(size)))]
    once = 0
    in_flight: set[Any] = set()

    def held() -> tuple[float, int, int, int]:
        threads = re.search(r"Threads:\s+(\d+)", Path("/proc/self/status").read_text())
        return time.monotonic(), held_kib(), int(threads[1]), len(os.listdir("/proc/self/fd"))  # type: ignore[index]

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

    samples, began, done, batches = [], time.monotonic(), False, 0
    while not done:
        batches += 1
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
        if batches % 50 == 0:
            if len(sets) > 4:
                gone, _ = sets.pop(common.randrange(1, len(sets)))
                assert hvd.remove_process_set(gone)
            members = sorted(common.sample(range(size), common.randrange(1, size)))
            if all(known != members for _, known in sets):
                sets.append((hvd.add_process_set(members), members))
            done = bool(hvd.allreduce(np.array([time.monotonic() - began > seconds]), op=hvd.Max, name="done")[0])
            samples.append(held())
    statistics = hvd.statistics()
    hvd.shutdown()
    return {"samples": samples, "batches": batches, "names": once, "statistics": statistics}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_nothing_grows_while_everything_is_right(worlds: WorldPool, transport: str) -> None:
    import numpy as np

    world = worlds(4, {"HOROVOD_TRANSPORT": transport, "HOROVOD_CACHE_CAPACITY": "512"})
    seen = world.run(soak, SECONDS, 20240601, timeout_s=SECONDS + 120)
    problems = []
    for rank, one in enumerate(seen):
        last = one["samples"][len(one["samples"]) // 3 :]
        seconds, rss, threads, descriptors = (np.array(column, float) for column in zip(*last, strict=True))
        minutes = (seconds - seconds[0]) / 60
        slope = steady_growth_kib(rss) / minutes[-1]
        limit = max(MAX_GROWTH_KIB_PER_MINUTE, NOISE_KIB / minutes[-1])
        print(
            f"rank {rank}: {one['batches']} batches, {one['names']} names once, {slope:.0f} KiB/min, "
            f"{rss[-1]:.0f} KiB, {threads[-1]:.0f} threads, {descriptors[-1]:.0f} descriptors"
        )
        if slope >= limit:
            problems.append((rank, slope, rss))
        if threads.max() > threads[0] + 1 or descriptors[-1] > descriptors[0]:
            problems.append((rank, threads, descriptors))
        assert one["statistics"]["in_flight"] == 0
    assert not problems, problems
