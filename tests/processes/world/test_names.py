# SPDX-License-Identifier: Apache-2.0
"""Names without number: those that were not used for longest make room, results stay right, and memory flat."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.extent import later
from support.memory import held_kib, steady_growth_kib
from support.world import WorldPool

import horovod.core as hvd


def use_names(count: int, ahead: int, recurring: int) -> dict[str, Any]:
    """Reduces under `count` names, `ahead` of them in flight at once, in an order that is this rank's own; between
    them `recurring` names that come back all the time."""
    hvd.init()
    order = random.Random(hvd.rank())
    ranks, size = hvd.rank(), hvd.size()
    memory: list[int] = []
    for start in range(0, count, ahead):
        if start * 100 >= (len(memory) + 50) * count:  # fifty samples of the second half
            memory.append(held_kib())
        numbers = list(range(start, min(start + ahead, count)))
        order.shuffle(numbers)
        handles = {n: hvd.allreduce_async(np.array([n, ranks]), op=hvd.Sum, name=f"once.{n}") for n in numbers}
        for again in range(recurring):
            assert hvd.allreduce(np.array([again]), op=hvd.Sum, name=f"again.{again}")[0] == again * size
        order.shuffle(numbers)
        for n in numbers:
            result = hvd.synchronize(handles[n])
            assert list(result) == [n * size, size * (size - 1) // 2], (n, result)
    statistics = hvd.statistics()
    hvd.shutdown()
    return {"memory": memory, "statistics": statistics}


@pytest.mark.parametrize("transport", ["shm", later("tcp")])
@pytest.mark.parametrize(("size", "capacity", "ahead"), [(2, 16, 50), (3, 0, 20), later(2, 7680, 1)])
def test_more_names_than_are_remembered(
    worlds: WorldPool, transport: str, size: int, capacity: int, ahead: int
) -> None:
    world = worlds(size, {"HOROVOD_TRANSPORT": transport, "HOROVOD_CACHE_CAPACITY": str(capacity)})
    count, recurring = (9000, 1) if ahead == 1 else (2000, 3)
    seen = world.run(use_names, count, ahead, recurring)
    assert (seen[0]["statistics"]["names_evicted"] > 0) == (capacity > 0), seen
    assert all(one["statistics"]["in_flight"] == 0 for one in seen)
    warned = world.output(0).count("more tensor names than Horovod remembers")
    assert warned == (1 if capacity > 0 else 0), world.output(0)


def repeat_names() -> tuple[int, int]:
    """How many requests took the slow way while forty names came back: as seen early, and later."""
    hvd.init()
    before = hvd.statistics()["slow_requests"]  # the world may have been used
    seen = []
    for step in range(100):
        for handle in [hvd.allreduce_async(np.ones(5), name=f"layer.{i}") for i in range(40)]:
            hvd.synchronize(handle)
        if step in (1, 99):
            seen.append(hvd.statistics()["slow_requests"] - before)
    hvd.shutdown()
    return seen[0], seen[1]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_names_that_come_back_need_no_coordinator(worlds: WorldPool, transport: str) -> None:
    for early, late in worlds(2, {"HOROVOD_TRANSPORT": transport}).run(repeat_names):
        assert early == late == 40


def test_more_names_in_flight_than_there_are_numbers(worlds: WorldPool) -> None:
    """All of 20,000 are submitted, by each rank in its own order, before any is waited for."""
    worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(use_names, 20_000, 20_000, 0)


@pytest.mark.slow("thousands of names")
def test_a_name_that_has_gone_leaves_nothing_in_memory(worlds: WorldPool) -> None:
    """40 bytes of name and some 250 of an entry would be 6 MiB from the 20,000th to the 40,000th."""
    env = {"HOROVOD_TRANSPORT": "shm", "HOROVOD_CACHE_CAPACITY": "64"}
    for one in worlds(2, env).run(use_names, 40_000, 200, 0):
        assert steady_growth_kib(one["memory"]) < 3072, one


def use_groups(groups: int, tensors: int, named: bool) -> dict[str, Any]:
    hvd.init()
    for step in range(groups):
        values = [np.array([step + i], np.int32) for i in range(tensors)]
        results = hvd.grouped_allreduce(values, op=hvd.Sum, name=f"step.{step}" if named else None)
        assert [int(one[0]) for one in results] == [hvd.size() * int(one[0]) for one in values]
    statistics = hvd.statistics()
    hvd.shutdown()
    return dict(statistics)


@pytest.mark.thorough
@pytest.mark.slow("tens of thousands of names")
@pytest.mark.parametrize(("groups", "tensors", "named"), [later(2200, 161, True), (80, 10000, False)])
def test_groups_of_many_tensors_make_room_for_each_other(
    worlds: WorldPool, groups: int, tensors: int, named: bool
) -> None:
    """What is known of a group is as long as the group, and would fill the memory for all names."""
    seen = worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(use_groups, groups, tensors, named)
    assert seen[0]["names_evicted"] > 0, seen


def test_a_name_that_is_too_long_is_shown_once(worlds: WorldPool) -> None:
    def run() -> list[str]:
        hvd.init()
        texts = []
        for call in (
            lambda name: hvd.allreduce(np.ones(2), name=name),
            lambda name: hvd.allreduce(np.ones(2, np.longdouble), name=name),
        ):
            with pytest.raises((TypeError, ValueError)) as caught:
                call("long " * 1000)
            texts.append(str(caught.value))
        assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 2.0
        return texts

    for too_long, other_wrong in worlds(2).run(run):
        assert too_long.count("(5000 bytes)") == 1 and "could not be told" not in too_long, too_long
        assert too_long.endswith(": a name has at most 4096 bytes"), too_long
        # It is wrong for another reason as well, which the peers cannot be told.
        assert other_wrong.count("(5000 bytes)") == 1, other_wrong
        assert other_wrong.endswith("(the other ranks could not be told: a name has at most 4096 bytes)"), other_wrong


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_million_names_leave_nothing_behind(worlds: WorldPool) -> None:
    count = 1_000_000
    seen = worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(use_names, count, 1000, 10, timeout_s=550)
    for one in seen:
        assert steady_growth_kib(one["memory"]) < 4096, seen
    assert seen[0]["statistics"]["names_evicted"] > 0.9 * count, seen
