# SPDX-License-Identifier: Apache-2.0
"""The harness itself: what a test sees of a rank that raises, dies or hangs."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from support.patience import Patience, wait_until
from support.world import World, WorldError, WorldPool


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def test_functions_and_closures_run_in_every_rank(worlds: WorldPool) -> None:
    factor = 10
    assert worlds(3).run(lambda add: factor * rank() + add, 1) == [1, 11, 21]
    assert worlds(3).run(lambda mine: (rank(), mine), per_rank=[("a",), ("b",), ("c",)])[2] == (2, "c")


def test_a_world_is_started_once_and_again_with_its_start_by_the_call_after_one_that_broke_it() -> None:
    pool = WorldPool()
    world = pool(2, start=lambda: os.environ.update(STARTED="yes"))
    assert pool(2) is world
    outcomes = world.run_each(lambda: os._exit(3) if rank() else os.environ.pop("STARTED"))
    assert (outcomes[0].value, outcomes[1].died) == ("yes", "exited with code 3")
    assert world.run(lambda: os.environ.pop("STARTED")) == ["yes"] * 2
    with pytest.raises(WorldError):
        world.run(hang_in_this_function, timeout_s=1.0)
    assert world.run(lambda: os.environ.pop("STARTED")) == ["yes"] * 2
    world.start(rank)  # a test that failed before it took the outcomes
    assert world.run(lambda: os.environ["STARTED"]) == ["yes"] * 2 and pool(2) is world
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


def hang_in_this_function(file: str = os.devnull) -> None:
    if rank() == 1:
        open(file, "w").close()
        signal.pause()


def work_until_told(file: str) -> str:
    while rank() == 1 and not os.path.exists(file):
        pass
    return "worked"


def test_a_call_may_take_longer_than_its_limit_while_a_rank_works(tmp_path: Path) -> None:
    limit_s, file = 1.0, tmp_path / "enough"
    with World(2) as world:
        call = world.start(work_until_told, str(file), timeout_s=limit_s)
        threading.Timer(2 * limit_s, file.touch).start()
        assert [outcome.value for outcome in call.outcomes()] == ["worked"] * 2


def test_a_hang_names_the_ranks_shows_where_they_stand_and_ends_them(tmp_path: Path) -> None:
    world = World(2)
    pids = [process.pid for process in world.processes]
    call = world.start(hang_in_this_function, str(tmp_path / "hangs"))
    wait_until(lambda: (tmp_path / "hangs").exists() and world.connections[0].poll())
    call.patience = Patience(0.5)
    with pytest.raises(WorldError, match=r"(?s)ranks \[1\] did not answer in time.*rank 1 .*in hang_in_this_function"):
        call.outcomes()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with world:  # later tests of a module that has it are not to fail for that
        assert world.run(rank) == [0, 1]
