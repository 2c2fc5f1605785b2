# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, leaves or shuts down in the middle of collectives: all others end soon, and name it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import SLACK_S, needs_unshare
from support.jobs import python, run_job, shared_memory_files, wait_until_shared_memory_is_as
from support.patience import wait_until
from support.world import World, shut_down_alone

import horovod.core as hvd
from horovod.core import calls, operations

ENDED_WITHIN_S = 3.0 + SLACK_S
# (ranks, transport, the one that dies): ten kills
KILLS = [(size, transport, rank) for size, transport in ((2, "shm"), (2, "tcp"), (3, "shm")) for rank in range(size)]
KILLS += [(4, "tcp", 0), (4, "tcp", 3), (4, "shm", 2)]
# Leaders and followers of several hosts.
KILLS += [*((4, "2+2", rank) for rank in range(4)), (4, "3+1", 1), (4, "3+1", 3), (4, "2+2 tcp", 3)]


def reduce_for_ever(going: str) -> None:
    """Reduces small and large tensors until something fails; says when it has begun."""
    hvd.init()
    small, large = np.ones(3, np.float32), np.ones(1_000_003, np.float32)
    for step in range(10**9):
        handles = [hvd.allreduce_async(tensor, name=f"{tensor.size}") for tensor in (small, large)]
        for handle in handles:
            hvd.synchronize(handle)
        if step == 5:
            Path(going, str(hvd.rank())).touch()


def wait_until_all_go(world: World, folder: Path) -> None:
    wait_until(lambda: len(list(folder.iterdir())) == world.size, world.stacks)


@pytest.mark.parametrize(("size", "transport", "rank"), KILLS)
def test_a_killed_rank_is_named_by_all_others_at_once(size: int, transport: str, rank: int, tmp_path: Path) -> None:
    files = shared_memory_files()
    with World(size, {"HOROVOD_TRANSPORT": transport}) as world:
        call = world.start(reduce_for_ever, str(tmp_path))
        wait_until_all_go(world, tmp_path)
        world.kill(rank)
        killed = time.monotonic()
        outcomes = call.outcomes()
        assert time.monotonic() - killed < ENDED_WITHIN_S
        texts = set()
        for other, outcome in enumerate(outcomes):
            if other == rank:
                assert outcome.died == "killed by SIGKILL"
                continue
            error: Any = outcome.error
            assert type(error).__name__ == "RankLostError", world.describe(outcomes)
            assert error.failed_rank == rank and f"rank {rank}" in str(error), str(error)
            texts.add(str(error))
        assert len(texts) == 1, "all name the same cause"
        world.end()
    wait_until_shared_memory_is_as(files)


def fork_and_reduce_for_ever(going: str, pid_file: str) -> None:
    """Rank 1 leaves a forked child behind, as a DataLoader does, which holds all that it inherited."""
    hvd.init()
    if hvd.rank() == 1:
        child = os.fork()
        if child == 0:
            os.close(int(sys.argv[1]))  # the test's own pipe
            time.sleep(200)  # it is killed
            os._exit(0)
        Path(pid_file).write_text(str(child))
    reduce_for_ever(going)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_forked_child_does_not_hide_the_death_of_its_rank(transport: str, tmp_path: Path) -> None:
    going, pid_file = tmp_path / "going", tmp_path / "pid"
    going.mkdir()
    with World(2, {"HOROVOD_TRANSPORT": transport}) as world:
        call = world.start(fork_and_reduce_for_ever, str(going), str(pid_file))
        wait_until_all_go(world, going)
        world.kill(1)
        killed = time.monotonic()
        try:
            error: Any = call.outcomes()[0].error
        finally:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        assert time.monotonic() - killed < ENDED_WITHIN_S
        assert type(error).__name__ == "RankLostError" and error.failed_rank == 1, error
        world.end()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_shuts_down_while_others_wait_is_named(transport: str) -> None:
    with World(3, {"HOROVOD_TRANSPORT": transport}) as world:
        started = time.monotonic()
        texts = world.run(shut_down_alone, 1)
        assert time.monotonic() - started < 8 + SLACK_S
        for rank in (0, 2):
            assert texts[rank].startswith("RankLeftError") and "rank 1" in texts[rank], texts


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_init_follows_shutdown_any_number_of_times(transport: str) -> None:
    def run() -> list[int]:
        counts = []
        for generation in range(12):
            hvd.init()
            hvd.init()
            assert hvd.is_initialized()
            result = hvd.allreduce(np.full(3, float(generation)), name="same name", op=hvd.Sum)
            assert result[0] == generation * hvd.size()
            hvd.barrier()
            hvd.shutdown()
            hvd.shutdown()
            assert not hvd.is_initialized()
            with pytest.raises(ValueError, match=r"Horovod was shut down; hvd\.init\(\) starts it again"):
                hvd.rank()
            counts.append(len(os.listdir("/proc/self/fd")))
        return counts

    with World(3, {"HOROVOD_TRANSPORT": transport}) as world:
        for counts in world.run(run):
            assert counts[-1] <= counts[1] + 1, f"descriptors leak: {counts}"


def test_a_handle_of_an_earlier_generation_is_an_error_and_no_crash() -> None:
    def run() -> str:
        hvd.init()
        handle = hvd.allreduce_async(np.ones(3), name=f"only here {hvd.rank()}")
        hvd.barrier()
        hvd.shutdown()
        gc.collect()
        try:
            hvd.synchronize(handle)
        except hvd.HorovodInternalError as error:
            return type(error).__name__
        return "no error"

    with World(2, {"HOROVOD_TRANSPORT": "shm"}) as world:
        assert set(world.run(run)) <= {"NotRunningError", "RankLeftError"}


def test_a_process_that_has_left_its_world_may_fork_a_rank() -> None:
    code = """
import os
import numpy as np
import horovod.core as hvd
hvd.init()
hvd.allreduce(np.ones(3))
hvd.shutdown()
child = os.fork()
hvd.init()
assert hvd.allreduce(np.ones(3))[0] == 1.0
hvd.shutdown()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


IN_NAMESPACES = """
import time
import numpy as np
import horovod.core as hvd
from horovod.core.exceptions import RankLostError
hvd.init()
hvd.allreduce(np.ones(1), name="all are there")
if rank == 1:
    time.sleep(0.5)
    os._exit(7)
try:
    hvd.allreduce(np.ones(1), name="one is missing")
except RankLostError as error:
    print(error)
"""


@needs_unshare("--pid", "--fork", "--kill-child")
def test_a_death_in_another_pid_namespace_is_seen(tmp_path: Path) -> None:
    """As of ranks in containers of one host, which may all have the same number."""
    command = ["unshare", "--pid", "--fork", "--kill-child", *python(IN_NAMESPACES)]
    env = {"HOROVOD_TERMINATION_GRACE_SECONDS": "60", "HOROVOD_TRANSPORT": "shm"}
    done = run_job(tmp_path, "-np", "2", command, env=env)
    assert "`allreduce.one is missing` failed: rank 1" in done.stdout, done.stdout + done.stderr


def test_an_interrupt_ends_a_wait_and_the_operation_can_still_be_waited_for() -> None:
    def run() -> float:
        hvd.init()
        tensor = np.ones(3)
        handle = hvd.allreduce_async(tensor, name="interrupted", op=hvd.Sum) if hvd.rank() == 0 else 0
        if hvd.rank() == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                hvd.synchronize(handle)
            hvd.barrier()
        else:
            hvd.barrier()
            handle = hvd.allreduce_async(tensor, name="interrupted", op=hvd.Sum)
        return float(hvd.synchronize(handle)[0])

    with World(2, {"HOROVOD_TRANSPORT": "shm"}) as world:
        assert world.run(run) == [2.0, 2.0]


@pytest.mark.parametrize("finish", ["finish", "_finish_by_ctypes"])
def test_an_interrupt_between_the_end_of_an_operation_and_that_of_synchronize_loses_nothing(finish: str) -> None:
    def run() -> bool:
        real = getattr(calls, finish)

        def interrupted(*arguments: Any) -> bool:
            assert real(*arguments)
            raise KeyboardInterrupt

        hvd.init()
        handle = hvd.allreduce_async(np.ones(3), name="done", op=hvd.Sum)
        operations.finish = interrupted
        with pytest.raises(KeyboardInterrupt):
            hvd.synchronize(handle)
        operations.finish = real
        assert hvd.poll(handle) and (hvd.synchronize(handle) == 2).all()
        return bool((hvd.allreduce(np.ones(3), name="done", op=hvd.Sum) == 2).all())

    with World(2, {"HOROVOD_TRANSPORT": "shm"}) as world:
        assert world.run(run) == [True, True]


@pytest.mark.parametrize("extension", [True, False])
def test_an_interrupt_of_a_blocking_call_leaves_the_engine_its_memory(extension: bool) -> None:
    def run() -> float:
        assert calls.run is not calls._run_by_ctypes, "there is no extension"
        if not extension:
            operations.run, operations.submit = calls._run_by_ctypes, calls._submit_by_ctypes
            operations.finish = calls._finish_by_ctypes
        hvd.init()
        tensor = np.ones(3)
        for _ in range(3):
            assert hvd.synchronize(hvd.allreduce_async(tensor, name="submitted", op=hvd.Sum))[0] == 2
        for _ in range(3):  # prepared from the second time on
            tensor[:] = 1.0
            hvd.allreduce_(tensor, name="interrupted", op=hvd.Sum)
        tensor[:] = 1.0
        if hvd.rank() == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                hvd.allreduce_(tensor, name="interrupted", op=hvd.Sum)
            assert [kept is tensor for kept in calls.unfinished.values()] == [True]
            hvd.barrier()
        else:
            hvd.barrier()
            hvd.allreduce_(tensor, name="interrupted", op=hvd.Sum)
        hvd.barrier()
        return float(tensor[0])

    with World(2, {"HOROVOD_TRANSPORT": "shm"}) as world:
        assert world.run(run) == [2.0, 2.0]
