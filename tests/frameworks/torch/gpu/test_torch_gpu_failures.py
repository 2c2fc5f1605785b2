# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with GPUs, which the stand-in has: who ends, within which time, and what all ranks are told."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support import frameworks
from support.extent import SLACK_S, later
from support.gpu import standin
from support.jobs import python, run_job
from support.world import Outcome, World

from horovod.core import context, native

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

NOTICED_S, FROZEN_S, ENDED_S = 0.5, 4.0, 3.0  # a death; a process that does not run; the end of all from then on
PROCESS_ENDED_S = 6.0  # of a process that hangs in NCCL, after the end of its job
WAYS = ("best", "host")


def started() -> Any:
    """horovod.torch, initialized in this rank, which has GPUs; NCCL's ranks have met."""
    hvd = frameworks.load("torch_gpu").hvd
    hvd.allreduce(standin.to_gpu(torch.ones(1)), name="meet")
    context.current().settle()
    return hvd


def world_of(way: str = "best", size: int = 2, transport: str = "shm", **env: str) -> World:
    return World(size, standin.environment(way, HOROVOD_TRANSPORT=transport, **env))


def reduce_for_ever(hvd: Any) -> None:
    tensor = standin.to_gpu(torch.ones(8))
    while True:
        hvd.allreduce_(tensor, name="gradient")


def touch_if_blocked(function: str, file: Path) -> None:
    """Creates the file once this rank is in the call that blocks."""

    def wait() -> None:
        while standin.library().standin_is_planned(function.encode()):
            time.sleep(0.01)
        file.touch()

    threading.Thread(target=wait, daemon=True).start()


def errors_of(outcomes: list[Outcome], *lost: int) -> list[Any]:
    """Of the ranks that are there."""
    assert all(outcome.error is not None for rank, outcome in enumerate(outcomes) if rank not in lost), outcomes
    return [outcome.error for rank, outcome in enumerate(outcomes) if rank not in lost]


def failed_reduction(*plan: Any) -> list[Any]:
    """What a world's ranks raise if a call of the driver or of NCCL fails in rank 1."""

    def run(function: str, code: int) -> None:
        hvd = started()
        if hvd.rank() == 1:
            standin.library().standin_fail(function.encode(), 0, code, 1)
        reduce_for_ever(hvd)

    way, *rest = plan
    with world_of(way) as world:
        errors = errors_of(world.run_each(run, *rest))
        world.end()
    return errors


# Processes that are gone


@pytest.mark.parametrize(
    ("size", "transport", "number"), [(2, "shm", 9), (3, "tcp", 9), (2, "shm", 19), (2, "tcp", 19)]
)
def test_who_waits_in_nccl_for_a_lost_rank_goes_on_with_an_error(
    size: int, transport: str, number: int, tmp_path: Path
) -> None:
    """The rank is lost in the middle of a collective, when the others' GPUs wait for it."""

    def run(going: Path) -> None:
        hvd = started()
        tensor = standin.to_gpu(torch.ones(8))
        hvd.barrier()
        if hvd.rank() == 1:
            standin.library().standin_hold(standin.gpu().default_stream)
        hvd.allreduce_(tensor, name="gradient")  # launched on all of them
        (going / str(hvd.rank())).touch()
        if hvd.rank() == 1:
            time.sleep(200)  # it is killed
        tensor.cpu()  # as a script that reads its loss: it waits for the GPU, and not in Horovod
        reduce_for_ever(hvd)

    with world_of(size=size, transport=transport) as world:
        world.start(run, tmp_path)
        while len(list(tmp_path.iterdir())) < size:
            time.sleep(0.01)
        world.kill(1, signal.Signals(number))
        ends = time.monotonic() + (NOTICED_S if number == 9 else FROZEN_S) + ENDED_S + SLACK_S
        others = [rank for rank in range(size) if rank != 1]  # a rank that is stopped gives no answer
        assert all(world.connections[rank].poll(max(0.0, ends - time.monotonic())) for rank in others), world.stacks()
        for error in errors_of([world.answer(rank) for rank in others]):
            assert type(error).__name__ == "RankLostError" and error.failed_rank == 1, error
        world.end()


def test_a_call_of_nccl_that_does_not_return_is_aborted_from_elsewhere(tmp_path: Path) -> None:
    """As when a rank dies while NCCL connects to it."""

    def run(going: Path) -> None:
        hvd = started()
        if hvd.rank() == 0:
            standin.library().standin_block(b"ncclGroupEnd", 0, -1)
            touch_if_blocked("ncclGroupEnd", going / "0")
        else:
            (going / "1").touch()
        reduce_for_ever(hvd)

    with world_of() as world:
        call = world.start(run, tmp_path)
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        world.kill(1)
        began = time.monotonic()
        (error,) = errors_of(call.outcomes(), 1)
        assert time.monotonic() - began < NOTICED_S + 2 * ENDED_S + SLACK_S
        assert type(error).__name__ == "RankLostError" and error.failed_rank == 1, error
        world.end()


@pytest.mark.parametrize("functions", [["ncclCommAbort"], ["ncclCommAbort", "ncclGroupEnd"]], ids=len)
def test_an_abort_that_does_not_return_keeps_nobody_waiting(functions: list[str], tmp_path: Path) -> None:
    """It may wait for another rank: the script gets its error. If another call hangs as well, there is no way back."""

    def run(functions: list[str], going: Path) -> None:
        hvd = started()
        hvd.allreduce(standin.to_gpu(torch.ones(2)), name="meet").cpu()
        for function in functions if hvd.rank() == 0 else []:
            standin.library().standin_block(function.encode(), 0, 10**9)
        if hvd.rank() == 0 and "ncclGroupEnd" in functions:
            touch_if_blocked("ncclGroupEnd", going / "0")
        else:
            (going / str(hvd.rank())).touch()
        try:
            reduce_for_ever(hvd)
        except hvd.HorovodInternalError:
            time.sleep(PROCESS_ENDED_S + 1)  # as if it saved a checkpoint
            raise

    with world_of() as world:
        call = world.start(run, functions, tmp_path)
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        world.kill(1)
        began = time.monotonic()
        outcome = call.outcomes()[0]
        assert time.monotonic() - began < NOTICED_S + ENDED_S + PROCESS_ENDED_S + 1 + SLACK_S
        text = world.output(0) if outcome.died else str(outcome.error)
        assert bool(outcome.died) == ("ncclGroupEnd" in functions), (outcome, text)
        assert ("rank 0 ends now: a call of NCCL has not returned" in text) == bool(outcome.died), text
        assert "rank 1" in text and "died without leaving the job" in text
        world.end()


# Errors of NCCL and of the GPU


def test_an_error_of_nccl_that_comes_late_is_raised_on_all_ranks() -> None:
    for error in failed_reduction("best", "ncclCommGetAsyncError", 3):
        assert "`allreduce.gradient`" in str(error) and "rank 1: an operation of NCCL failed: NCCL error 3" in str(
            error
        )
    for error in failed_reduction("best", "ncclCommGetAsyncError", 6):
        # Another rank's end, says NCCL, and nobody has ended.
        assert type(error).__name__ == "RankLostError" and error.failed_rank == -1
        assert "rank 1: an operation of NCCL failed: NCCL error 6" in str(error)


def test_an_error_of_nccl_at_once_is_raised_on_all_ranks() -> None:
    for error in failed_reduction("best", "ncclAllReduce", 2):
        assert "rank 1: ncclAllReduce failed: NCCL error 2" in str(error), error


@pytest.mark.parametrize(
    ("way", "function", "code"),
    [("best", "cuEventQuery", 999), ("host", "cuMemcpyAsync", 719), ("best", "cuEventRecord", 214)],
)
def test_a_lost_gpu_is_named_on_all_ranks(way: str, function: str, code: int) -> None:
    for error in failed_reduction(way, function, code):
        assert type(error).__name__ == "DeviceLostError" and error.failed_rank == 1, repr(error)
        assert f"rank 1: {function} failed: CUDA error {code}" in str(error)
        assert "failed: `allreduce.gradient`" not in str(error)  # its name twice
        assert "cannot use the GPU any more" in str(error) and error.code == "device-lost"


def test_a_gpu_whose_memory_is_full_is_named_on_all_ranks() -> None:
    def run() -> None:
        hvd = started()
        if hvd.rank() == 1:
            standin.library().standin_fail(b"cuMemAllocAsync", 0, 2, 1)
        try:
            hvd.allgather(standin.to_gpu(torch.ones(8)), name="rows")
            reduce_for_ever(hvd)
        finally:
            hvd.shutdown()

    with world_of() as world:
        for error in errors_of(world.run_each(run)):
            assert type(error).__name__ == "OutOfMemoryError", repr(error)
            assert "rank 1: cuMemAllocAsync failed: CUDA error 2" in str(error) and "`allgather.rows`" in str(error)
        assert not any("the last operations have failed" in world.output(rank) for rank in range(2))  # it was raised
        world.end()


def test_after_an_error_the_next_generation_has_a_communicator_of_its_own() -> None:
    def run() -> float:
        hvd = started()
        if hvd.rank() == 1:
            standin.library().standin_fail(b"ncclCommGetAsyncError", 0, 3, 1)
        with pytest.raises(hvd.HorovodInternalError):
            reduce_for_ever(hvd)
        hvd.shutdown()
        hvd.init()
        return float(hvd.allreduce(standin.to_gpu(torch.ones(2)), op=hvd.Sum, name="again").cpu()[0])

    with world_of() as world:
        assert world.run(run) == [2.0, 2.0]


# Waits without an end


@pytest.mark.slow("jobs on the stand-in for GPUs")
@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_that_hangs_is_reported_and_then_ends_the_job(way: str) -> None:
    def run() -> None:
        hvd = started()
        tensor = standin.to_gpu(torch.ones(8))
        if hvd.rank() == 1:  # as a kernel that never ends, before the gradient is computed
            standin.library().standin_hold(standin.gpu().default_stream)
            standin.library().standin_touch(standin.gpu().default_stream, tensor.data_ptr(), 32, 1)
        began = time.monotonic()
        try:
            reduce_for_ever(hvd)
        finally:
            assert time.monotonic() - began > 2.9

    with world_of(way, HOROVOD_STALL_CHECK_TIME_SECONDS="1", HOROVOD_NCCL_TIMEOUT_SECONDS="3") as world:
        call = world.start(run)
        began = time.monotonic()
        errors = errors_of(call.outcomes())
        assert time.monotonic() - began < 3 + ENDED_S + SLACK_S
        own, other = world.output(1), world.output(0)
        world.end()
    for error in errors:
        assert type(error).__name__ == "AbortedError", repr(error)
        assert "rank 1 waited" in str(error) and "for its GPU to compute the input of `allreduce.gradient`" in str(
            error
        ), error
        assert "HOROVOD_NCCL_TIMEOUT_SECONDS" in str(error)
    assert "stall: rank 1 waited" in own and "a kernel of the script hangs" in own
    assert way == "host" or ("stall: rank 0 waited" in other and "NCCL waits for another rank" in other)


def test_an_error_of_the_last_operation_is_written_at_the_end() -> None:
    """Also if the script has caught an error of one call before, which left the world running."""

    def run() -> None:
        hvd = started()
        with pytest.raises(hvd.HorovodInternalError, match="expected shape"):
            hvd.allreduce(torch.ones(1 + hvd.rank()), name="differs")
        tensor = standin.to_gpu(torch.ones(8))
        if hvd.rank() == 1:
            standin.library().standin_hold(standin.gpu().default_stream)
            standin.library().standin_touch(standin.gpu().default_stream, tensor.data_ptr(), 32, 1)
        hvd.allreduce(tensor, name="last")
        ended, status = context.current(), native.Status()
        while ended.library.hvd_end_seen(ended.pointer, ctypes.addressof(status)) == native.OK:
            time.sleep(0.05)
        hvd.shutdown()

    with world_of(HOROVOD_NCCL_TIMEOUT_SECONDS="1") as world:
        world.run(run)
        outputs = [world.output(rank) for rank in range(2)]
        world.end()
    for rank, output in enumerate(outputs):
        assert f"rank {rank}: the last operations have failed: " in output, outputs
        assert "rank 1 waited" in output and "allreduce.last" in output, outputs


def test_a_rank_that_ends_its_script_waits_for_what_the_others_gpus_need_from_it() -> None:
    """Rank 0 ends before its last operation has, because rank 1's GPU is busy for longer than an end may take."""

    def run() -> float:
        hvd = started()
        tensor = standin.to_gpu(torch.ones(8))
        stream = standin.gpu().default_stream
        if hvd.rank() == 1:
            standin.library().standin_hold(stream)
            threading.Timer(context.STOP_TIMEOUT_MS / 1000 + 1, standin.library().standin_release, [stream]).start()
        result = hvd.allreduce(tensor, op=hvd.Sum, name="last")
        hvd.shutdown()
        return float(result.cpu()[0])

    with world_of() as world:
        assert world.run(run) == [2.0, 2.0]
        assert not any("horovod: " in world.output(rank) for rank in range(2))
        world.end()


RESULT_IS_USED = """
import torch
import horovod.torch as hvd
from support.gpu import standin

standin.with_gpus()
hvd.init()
tensor = standin.to_gpu(torch.ones(8))
hvd.allreduce(tensor, name="meet").cpu()
if rank == 1:  # a kernel that never ends
    standin.library().standin_hold(standin.gpu().default_stream)
    standin.library().standin_touch(standin.gpu().default_stream, tensor.data_ptr(), 32, 1)
print("result", rank, hvd.allreduce(tensor, name="last").cpu().shape)
"""


# The launcher ends the job by the cause that it was told. mpirun and srun know the exit code alone.
TELLS_ITS_EXIT_CODE = """
import subprocess, sys
done = subprocess.run([sys.executable, "-c", sys.argv[1]])
print("exit code", done.returncode, flush=True)
sys.exit(done.returncode)
"""


@pytest.mark.slow("jobs on the stand-in for GPUs")
def test_a_rank_that_has_used_a_failed_result_ends_with_an_error(tmp_path: Path) -> None:
    """And its launcher ends the other one, which waits for its own kernel for ever."""
    env = standin.environment(HOROVOD_NCCL_TIMEOUT_SECONDS="1", OMP_NUM_THREADS="1")
    command = [sys.executable, "-c", TELLS_ITS_EXIT_CODE, python(RESULT_IS_USED)[-1]]
    done = run_job(tmp_path, "-np", "2", command, env=env)
    assert done.code == 1 and "result 0" in done.stdout and "[0]<stdout>:exit code 1" in done.stdout, done
    assert "rank 0: the last operations have failed: " in done.stderr and "rank 1 waited" in done.stderr, done
    assert "waited too long for its GPU, and was ended" in done.stderr, done
    assert done.stderr.endswith("more: horovodrun --explain gpu-stall\n"), done


def test_a_hang_in_nccl_itself_ends_the_job() -> None:
    def run() -> None:
        hvd = started()
        if hvd.rank() == 1:
            standin.library().standin_block(b"ncclGroupEnd", 0, -1)
        reduce_for_ever(hvd)

    with world_of(HOROVOD_STALL_CHECK_TIME_SECONDS="1", HOROVOD_NCCL_TIMEOUT_SECONDS="2") as world:
        call = world.start(run)
        began = time.monotonic()
        errors = errors_of(call.outcomes())
        assert time.monotonic() - began < 2 + 2 + 2 * ENDED_S + SLACK_S
        report = world.output(1)
        world.end()
    assert report.count("stall: rank 1 waited") == 1 and "for a call of NCCL to return" in report, report
    for error in errors:
        assert type(error).__name__ == "AbortedError" and "NCCL" in str(error), repr(error)


# NCCL cannot be used


CANNOT = {
    "shared": ("rank 0 and rank 1 use the same GPU", "torch.cuda.set_device(hvd.local_rank())"),
    "versions": ("rank 0 has NCCL 2.32.3, rank 1 has 2.28.9", "HOROVOD_NCCL_LIBRARY"),
    "hangs": ("did not meet in NCCL within", "NCCL_DEBUG=INFO"),
    "first operation hangs": ("did not meet in NCCL within", "NCCL_SOCKET_IFNAME"),
    "first operation fails": ("rank 1: the first operation of NCCL failed: NCCL error 6 (remote process",),
    "network": ("rank 0: ncclGetUniqueId failed: NCCL error 2 (unhandled system error)",),
    "does not block": ("rank 1: NCCL_COMM_BLOCKING is 0", "unset it"),
    "fails": ("rank 1: ncclCommInitRankConfig failed: NCCL error 2 (unhandled system error)",),
}


@pytest.mark.parametrize("way", ["best", later("nccl")])
@pytest.mark.parametrize("case", CANNOT)
def test_ranks_that_nccl_cannot_join_go_through_host_memory_or_are_told_why(case: str, way: str) -> None:
    def run(case: str) -> tuple[float, int]:
        hvd, library = frameworks.load("torch_gpu").hvd, standin.library()
        if case == "shared":
            library.standin_nccl_version(22809)
        if case == "versions" and hvd.rank() == 1:
            library.standin_nccl_version(22809)
        if case == "hangs" and hvd.rank() == 1:
            library.standin_block(b"ncclCommInitRankConfig", 0, 10**9)
        if case == "first operation hangs" and hvd.rank() == 1:
            library.standin_block(b"ncclAllReduce", 0, 10**9)
        if case == "first operation fails" and hvd.rank() == 1:
            library.standin_fail(b"ncclCommGetAsyncError", 0, 6, 1)
        if case == "does not block" and hvd.rank() == 1:
            library.standin_fail(b"ncclCommInitRankConfig", 0, 7, 1)
        if case == "network" and hvd.rank() == 0:
            library.standin_fail(b"ncclGetUniqueId", 0, 2, 1)
        if case == "fails" and hvd.rank() == 1:
            library.standin_fail(b"ncclCommInitRankConfig", 0, 2, 1)
        gpu = standin.gpu(0) if case == "shared" else standin.gpu()
        value = hvd.allreduce(standin.to_gpu(torch.ones(2), gpu), op=hvd.Sum, name="first").cpu()[0]
        return float(value), hvd.statistics()["batches_by_nccl"]

    with world_of(way, HOROVOD_START_TIMEOUT="5") as world:
        outcomes = world.run_each(run, case)
        warning = world.output(0)
        world.end()
    for outcome in outcomes:
        told = warning if way == "best" else str(outcome.error)
        assert all(words in told for words in CANNOT[case]), (outcome, warning)
        assert ("they go through host memory" in warning) == (way == "best"), warning
        assert outcome.value == (2.0, 0) if way == "best" else "NCCL cannot carry the tensors" in told, outcome


CANNOT_BEGIN = {
    "driver": "the CUDA driver (/no/libcuda.so)",
    "gpu": "no GPU can be used",
    "memory": "cuModuleLoadData failed: CUDA error 2",
    "lost": "cuModuleLoadData failed: CUDA error 700",
}


@pytest.mark.parametrize("case", CANNOT_BEGIN)
def test_a_rank_that_cannot_begin_with_its_gpu_says_so(case: str) -> None:
    def run(case: str) -> str:
        standin.library()
        if int(os.environ["HOROVOD_RANK"]) == 1:
            if case == "driver":
                os.environ["HOROVOD_CUDA_LIBRARY"] = "/no/libcuda.so"
            elif case == "gpu":
                standin.library().standin_fail(b"cuInit", 0, 100, 10**9)
            else:
                standin.library().standin_fail(b"cuModuleLoadData", 0, {"memory": 2, "lost": 700}[case], 1)
        hvd = frameworks.load("torch_gpu").hvd
        with pytest.raises((ValueError, MemoryError, hvd.HorovodInternalError)) as raised:
            hvd.allreduce(standin.to_gpu(torch.ones(2)), name="first")
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="on the host").tolist() == [2.0, 2.0]  # the job goes on
        return str(raised.value)

    with world_of() as world:
        for text in world.run(run, case):
            assert "rank 1" in text and "first`" in text, text
            assert CANNOT_BEGIN[case] in text, text
