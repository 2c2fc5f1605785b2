# SPDX-License-Identifier: Apache-2.0
"""A process that starts and ends many generations, in order or by an abort, keeps no descriptor, thread or memory of
them; and a forked child is none of the job."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import THOROUGH, later
from support.memory import PARTS, held_kib, steady_growth_kib
from support.world import World, WorldPool

import horovod.core as hvd
from horovod.core import context, exceptions

CYCLES = 100 if THOROUGH else 24
WARM_UP = 10  # until allocators and caches have what they keep
MAX_GROWTH_KIB = 6 * 1024  # a leaked segment would be 13 MiB a generation, a leaked stack 8


def run_cycles(cycles: int, end: str) -> dict[str, Any]:
    """What this process holds after the warm-up and at the end, and its memory (KiB) eight times between;
    each generation reduces, and ends as `end` says."""
    gc.disable()  # a generation is released when it ends, not when the garbage is collected next

    def threads_now() -> int:
        found = re.search(r"Threads:\s+(\d+)", Path("/proc/self/status").read_text())
        return int(found[1])  # type: ignore[index]

    def held() -> dict[str, int]:
        while threads_now() > threading.active_count():
            time.sleep(0.01)  # Python has joined a thread a moment before the kernel ends it
        maps = Path("/proc/self/maps").read_text().count("memfd:horovod")
        descriptors = len(os.listdir("/proc/self/fd"))
        return {"threads": threads_now(), "descriptors": descriptors, "segments": maps}

    causes = set()
    before: dict[str, int] = {}
    memory = []
    for cycle in range(cycles + WARM_UP):
        if cycle == WARM_UP:
            before = held()
        if cycle >= WARM_UP and (cycle - WARM_UP) % (cycles // PARTS) == 0:
            memory.append(held_kib())
        hvd.init()
        ones = np.ones(50_000, np.float32)
        if end == "abort":
            # One rank ends it for all, in the middle of their operations, each time another one.
            running = context.current()
            try:
                for step in range(10**6):
                    assert hvd.allreduce(ones, op=hvd.Sum, name="x")[0] == hvd.size()
                    if step == cycle % 5 and cycle % hvd.size() == hvd.rank():
                        running.library.hvd_abort(running.pointer, hvd.rank(), f"abort {cycle}".encode())
            except exceptions.HorovodInternalError as error:
                causes.add(str(error).rpartition("abort ")[2])
            del running
            hvd.shutdown()
            continue
        assert hvd.allreduce(ones, op=hvd.Sum, name="x")[0] == hvd.size()
        if end == "mismatch":
            try:
                hvd.allreduce(np.ones(3 + hvd.rank(), np.float32), name="uneven")
                raise AssertionError("ranks of two shapes agreed")
            except exceptions.MismatchError:
                pass
        hvd.shutdown()
    assert len(causes) == (cycles + WARM_UP if end == "abort" else 0), causes
    return {"before": before, "after": held(), "memory": [*memory, held_kib()]}


@pytest.mark.slow("many generations")
@pytest.mark.parametrize("end", ["shutdown", "abort", "mismatch"])
@pytest.mark.parametrize("transport", ["shm", later("tcp")])
def test_many_generations_leave_nothing_behind(transport: str, end: str) -> None:
    with World(2, {"HOROVOD_TRANSPORT": transport}) as world:
        for held in world.run(run_cycles, CYCLES, end):
            assert held["after"] == held["before"]
            assert steady_growth_kib(held["memory"]) < MAX_GROWTH_KIB, held


def call_in_a_child() -> str:
    """What a forked child gets from a rank's job, in a line a call."""
    hvd.init()
    hvd.allreduce(np.ones(3), name="x")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        lines = []
        for call in (
            lambda: hvd.allreduce(np.ones(3), name="x"),
            lambda: hvd.allreduce(np.ones(3), name="new"),
            lambda: hvd.barrier(),
            lambda: hvd.broadcast_object({"a": 1}),
        ):
            try:
                call()
                lines.append("no error")
            except Exception as error:
                lines.append(f"{type(error).__name__}: {error}".replace("\n", " "))
        os.write(writing, "\n".join(lines).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    assert hvd.allreduce(np.ones(3), op=hvd.Sum, name="x")[0] == hvd.size()
    return text


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_forked_child_that_calls_in_gets_a_clear_error_and_harms_nobody(worlds: WorldPool, transport: str) -> None:
    for text in worlds(2, {"HOROVOD_TRANSPORT": transport}).run(call_in_a_child):
        lines = text.splitlines()
        assert len(lines) == 4
        for line in lines:
            assert "forked from a rank" in line and "hint:" in line, line
