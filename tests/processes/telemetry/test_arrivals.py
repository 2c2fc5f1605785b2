# SPDX-License-Identifier: Apache-2.0
"""The arrivals in hvd.statistics(): which rank the others have waited for, and how long, as each of them saw it."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from support.patience import be_late
from support.world import World, WorldPool

import horovod.core as hvd

LATE_S = 0.02
STEPS = 10
# On a busy machine a rank that is to wait may itself be late.
MAJORITY = STEPS // 2 + 1
LEAST_S = STEPS * LATE_S / 2


def train(late_rank: int, name: str, sets: list[int] | None = None) -> dict[str, Any]:
    """STEPS steps, of which one rank comes late to every one; the arrivals, as the difference to before."""
    hvd.init()
    everyone = hvd.allgather_object(os.getpid())
    members = hvd.add_process_set(sets) if sets else hvd.global_process_set
    hvd.allreduce(np.ones(3), name="first")
    pids = [everyone[rank] for rank in members.ranks]
    before = hvd.statistics()["arrivals"]
    for _ in range(STEPS if members.included() else 0):
        if hvd.rank() == late_rank:
            be_late(LATE_S, pids)
        hvd.allreduce(np.ones(3), name=name, process_set=members)
    after = hvd.statistics()["arrivals"]
    if sets:
        hvd.remove_process_set(members)
    return {"before": before, "after": after}


def waited_for(seen: dict[str, Any], rank: int, key: str = "by_rank") -> tuple[int, float]:
    none = {"times": 0, "waited_s": 0.0}
    before, after = (seen[when][key].get(rank, none) for when in ("before", "after"))
    return after["times"] - before["times"], after["waited_s"] - before["waited_s"]


@pytest.mark.parametrize("hosts", ["", "2+1", "2+1 tcp", "tcp"])
def test_the_late_rank_is_named_with_the_time_that_the_others_waited(worlds: WorldPool, hosts: str) -> None:
    # A world of its own: its tensors are among the ten with the longest waits.
    world = worlds(3, {"HOROVOD_TRANSPORT": hosts or "auto", "ARRIVALS": "alone"})
    for late in (2, 0):
        seen = world.run(train, late, f"late.{late}")
        for rank in {0, 1, 2} - {late}:
            times, waited_s = waited_for(seen[rank], late)
            assert times >= MAJORITY, seen[rank]
            assert waited_s > LEAST_S
            assert waited_for(seen[rank], late, "last_minute")[0] >= MAJORITY
            blocked_s = seen[rank]["after"]["blocked_for_ranks_s"] - seen[rank]["before"]["blocked_for_ranks_s"]
            assert LEAST_S < blocked_s <= waited_s + 0.05
            assert seen[rank]["after"]["by_tensor"][f"allreduce.late.{late}"]["waited_s"] > LEAST_S
        # It has waited for the others' data at most, and not as long as they for it.
        waited_s = seen[late]["after"]["waited_s"] - seen[late]["before"]["waited_s"]
        assert waited_s < LEAST_S
        assert seen[late]["after"]["calls"] - seen[late]["before"]["calls"] >= STEPS


def test_waits_are_summed_up_by_host_and_kept_over_a_new_start(worlds: WorldPool) -> None:
    def wait() -> tuple[dict[str, Any], dict[str, Any]]:
        hvd.init()
        pids = hvd.allgather_object(os.getpid())
        for _ in range(5):
            if hvd.rank() == 2:
                be_late(0.02, pids)
            hvd.allreduce(np.ones(3), name="by.host")
        before = hvd.statistics()["arrivals"]
        hvd.shutdown()
        hvd.init()
        return before, hvd.statistics()["arrivals"]

    for rank, (before, after) in enumerate(worlds(3, {"HOROVOD_PRETEND_HOSTS": "2,1"}).run(wait)):
        if rank < 2:
            assert before["by_host"][1]["waited_s"] > 0.05 > after["by_host"].get(1, {"waited_s": 0.0})["waited_s"]
        assert after["earlier"]["seconds"] >= before["earlier"]["seconds"] + before["seconds"]
        assert after["earlier"]["steps"] >= before["earlier"]["steps"] + 5
        assert after["earlier"]["blocked_for_ranks_s"] >= before["blocked_for_ranks_s"]


def test_statistics_have_the_same_names_after_a_failure() -> None:
    def begin() -> list[str]:
        hvd.init()
        return sorted(hvd.statistics())

    def fail() -> tuple[str, list[str]]:
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(hvd.HorovodInternalError):
            hvd.allreduce(np.ones(3), name="fails")
        return hvd.statistics()["transport"], sorted(hvd.statistics())

    with World(2) as world:
        names = world.run(begin)[0]
        outcome = world.run_each(fail)[0]
        assert outcome.ok, outcome
        assert outcome.value == ("shm", names)
        world.end()


def test_a_wait_of_more_than_a_second_counts_whole(worlds: WorldPool) -> None:
    """The script waits in slices of a second, to see signals."""

    def wait() -> float:
        hvd.init()
        pids = hvd.allgather_object(os.getpid())
        hvd.allreduce(np.ones(3), name="long")
        before = hvd.statistics()["arrivals"]["blocked_for_ranks_s"]
        if hvd.rank() == 1:
            be_late(1.3, pids)
        hvd.allreduce(np.ones(3), name="long")
        return float(hvd.statistics()["arrivals"]["blocked_for_ranks_s"]) - before

    assert worlds(2).run(wait)[0] > 1.25


def test_waits_are_counted_by_process_set(worlds: WorldPool) -> None:
    seen = worlds(3, {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}).run(train, 1, "of.a.set", [0, 1])
    (number,) = set(seen[0]["after"]["by_process_set"]) - set(seen[0]["before"]["by_process_set"])
    assert number != 0 and seen[0]["after"]["by_process_set"][number]["waited_s"] > LEAST_S


def test_an_early_call_that_waits_behind_other_work_blocks_nobody(worlds: WorldPool) -> None:
    """Its wait is counted, but no caller was blocked meanwhile: it was hidden behind the rank's own work."""

    def overlap() -> tuple[float, float]:
        hvd.init()
        pids = hvd.allgather_object(os.getpid())
        hvd.allreduce(np.ones(3), name="hidden")
        before = hvd.statistics()["arrivals"]
        for _ in range(3):
            if hvd.rank() == 1:
                be_late(3 * LATE_S, pids)
            handle = hvd.allreduce_async(np.ones(3), name="hidden")
            if hvd.rank() == 0:
                be_late(5 * LATE_S)
            hvd.synchronize(handle)
            hvd.barrier()
        after = hvd.statistics()["arrivals"]
        return tuple(after[key] - before[key] for key in ("waited_s", "blocked_for_ranks_s"))

    waited_s, blocked_s = worlds(2).run(overlap)[0]
    assert waited_s > 6 * LATE_S and blocked_s < waited_s / 2
