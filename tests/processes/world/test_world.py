# SPDX-License-Identifier: Apache-2.0
"""The harness itself: what a test sees of a rank that raises, dies or hangs."""

from __future__ import annotations

import os
import signal

import pytest
from support.world import World, WorldError, WorldPool


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def test_functions_and_closures_run_in_every_rank(worlds: WorldPool) -> None:
    factor = 10
    assert worlds(3).run(lambda add: factor * rank() + add, 1) == [1, 11, 21]
    assert worlds(3).run(lambda mine: (rank(), mine), per_rank=[("a",), ("b",), ("c",)])[2] == (2, "c")


def test_a_world_is_started_once_and_again_after_it_broke() -> None:
    pool = WorldPool()
    first = pool(2)
    assert pool(2) is first
    first.kill(1)
    assert first.run_each(rank)[1].died == "killed by SIGKILL"
    assert pool(2) is not first and pool(2).run(rank) == [0, 1]
    pool.close()


def fail_on_rank_1() -> int:
    print("about to look")
    return 1 // (1 - rank())


def test_an_error_is_an_outcome_or_raises_with_traceback_and_output(worlds: WorldPool) -> None:
    outcomes = worlds(2).run_each(fail_on_rank_1)
    assert outcomes[0].value == 1 and isinstance(outcomes[1].error, ZeroDivisionError)
    with pytest.raises(WorldError, match=r"(?s)rank 1: Traceback.*fail_on_rank_1.*about to look"):
        worlds(2).run(fail_on_rank_1)
    assert worlds(2).run(rank) == [0, 1]


def hang_in_this_function() -> None:
    if rank() == 1:
        signal.pause()


def test_a_hang_names_the_ranks_shows_where_they_stand_and_ends_them() -> None:
    world = World(2)
    pids = [process.pid for process in world.processes]
    with pytest.raises(WorldError, match=r"(?s)ranks \[1\] did not answer in time.*rank 1 .*in hang_in_this_function"):
        world.run(hang_in_this_function, timeout_s=3.0)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with world:  # later tests of a module that has it are not to fail for that
        assert world.run(rank) == [0, 1]


def test_a_rank_that_dies_in_a_call_is_named() -> None:
    with World(2) as world:
        call = world.start(lambda: rank() and os._exit(3))
        outcomes = call.outcomes()
        assert (outcomes[0].ok, outcomes[1].died) == (True, "exited with code 3")
        assert not world.healthy
