# SPDX-License-Identifier: Apache-2.0
"""Too little memory, too few descriptors or threads, too large files: the start fails on every rank, soon, and says on
which rank what was wanted; no rank is ever killed for it. And 64 ranks on one machine."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from support.extent import THOROUGH, later
from support.jobs import Job, python
from support.world import Outcome, World

import horovod.core as hvd
from horovod.core import native

HINT = "hint:"


def address_space() -> int:
    """Bytes that this process has mapped."""
    return int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]


def start_with(limits: dict[int, tuple[str, int]]) -> str:
    """Starts under a limit that only this rank has: (name of a resource, how much more than now is left)."""
    native.library()
    rank = int(os.environ["HOROVOD_RANK"])
    if rank in limits:
        name, room = limits[rank]
        used = 0
        if name == "RLIMIT_AS":
            used = address_space()
        elif name == "RLIMIT_NOFILE":  # a number that no new one reaches, not a count: there are gaps below the highest
            open_ones = set(map(int, os.listdir("/proc/self/fd")))
            used = [number for number in range(1000) if number not in open_ones][room] - room
        number = getattr(resource, name)
        resource.setrlimit(number, (used + room, resource.getrlimit(number)[1]))
    hvd.init()
    return str(hvd.allreduce(np.ones(3), op=hvd.Sum, name="x")[0])


def texts(outcomes: list[Outcome]) -> list[str]:
    assert not any(outcome.ok or outcome.died for outcome in outcomes), outcomes
    return [str(outcome.error) for outcome in outcomes]


@pytest.mark.parametrize(
    ("rank", "limit", "expected"),
    [
        (0, ("RLIMIT_FSIZE", 1 << 20), r"rank 0 cannot create \d{8} bytes of shared memory: File too large"),
        (1, ("RLIMIT_AS", 18 << 20), r"rank 1 cannot map \d{8} bytes of shared memory: Cannot allocate memory"),
        (2, ("RLIMIT_AS", 18 << 20), r"rank 2 cannot map \d{8} bytes of shared memory: Cannot allocate memory"),
    ],
)
def test_memory_that_is_not_to_be_had_is_named_by_every_rank(rank: int, limit: tuple[str, int], expected: str) -> None:
    with World(3, {"HOROVOD_TRANSPORT": "shm", "HOROVOD_START_TIMEOUT": "1000"}) as world:  # for what cannot come
        for text in texts(world.run_each(start_with, {rank: limit})):
            assert re.search(expected, text) and HINT in text, text


def test_a_rank_without_memory_for_its_threads_is_named_by_every_rank() -> None:
    with World(2, {"HOROVOD_TRANSPORT": "shm", "HOROVOD_START_TIMEOUT": "10"}) as world:
        for text in texts(world.run_each(start_with, {1: ("RLIMIT_AS", 34 << 20)})):
            assert "rank 1" in text and "thread" in text and HINT in text, text


@pytest.mark.parametrize("operation", ["allgather", "alltoall"])
def test_a_result_too_large_for_a_rank_is_named_once_and_with_its_bytes(operation: str) -> None:
    def gather(operation: str) -> None:
        hvd.init()
        if hvd.rank() == 1:
            limit = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (address_space() + (600 << 20), limit))
        getattr(hvd, operation)(np.empty(400 << 20, np.uint8), name="large")

    expected = 838860800 if operation == "allgather" else 419430400
    with World(2, {"HOROVOD_TRANSPORT": "shm"}) as world:
        for outcome in world.run_each(gather, operation):
            text = str(outcome.error)
            assert f"rank 1 does not have the memory for the result: {expected} bytes\nhint: " in text, text
            assert text.count("large") == 1 and isinstance(outcome.error, MemoryError), text


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("rank", [0, 1])
def test_with_few_descriptors_left_a_start_works_or_fails_with_words(rank: int, transport: str) -> None:
    seen = []
    for room in (1, 2, 3, 4, 5, 6, 8, 10, 12) if THOROUGH else (1, 5):
        with World(2, {"HOROVOD_TRANSPORT": transport, "HOROVOD_START_TIMEOUT": "1"}) as world:
            outcomes = world.run_each(start_with, {rank: ("RLIMIT_NOFILE", room)})
            assert not any(outcome.died for outcome in outcomes), world.describe(outcomes)
            errors = [str(outcome.error) for outcome in outcomes if not outcome.ok]
            assert len(errors) in (0, 2), world.describe(outcomes)
            for text in errors:
                assert f"rank {rank}" in text or "Too many open files" in text, text
            seen.append(bool(errors))
    assert seen[0], "no room for one more descriptor, and it started"


def test_a_start_goes_well_under_a_profilers_signals() -> None:
    """Ten a millisecond. The kernel may let one of them end the allocation of the shared memory."""

    def run() -> float:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        hvd.init()
        total = float(hvd.allreduce(np.ones(3), op=hvd.Sum)[0])
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        return total

    with World(2, {"HOROVOD_TRANSPORT": "shm"}) as world:
        assert world.run(run) == [2.0, 2.0]


@contextlib.contextmanager
def control_group(limit_bytes: int) -> object:
    """A memory control group inside of this process' own; its folder."""
    own = next(
        (line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), ""
    )
    folder = Path("/sys/fs/cgroup/memory", own.lstrip("/"), f"horovod-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"hardware: no memory control group can be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


def start_in_group(folder: str) -> str:
    if os.environ["HOROVOD_RANK"] == "0":
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    return start_with({})


def test_a_control_group_without_room_is_an_error_and_not_a_kill() -> None:
    with control_group(10 << 20) as folder, World(2, {"HOROVOD_TRANSPORT": "shm"}) as world:
        for text in texts(world.run_each(start_in_group, str(folder))):
            assert "rank 0 cannot allocate" in text and "bytes of shared memory" in text, text
            assert str(folder) in text and HINT in text, text


def test_a_rank_that_the_kernel_kills_for_memory_is_named_with_the_reason(tmp_path: Path) -> None:
    code = """
import numpy as np
import horovod.core as hvd
hvd.init()
kept = []
while True:
    hvd.allreduce(np.ones(4), name="g")
    if rank == 1:
        kept.append(np.ones(5_000_000))  # 40 MB
"""
    with control_group(400 << 20) as folder:
        with Job(tmp_path, "-np", "2", python(code)) as job:
            (folder / "cgroup.procs").write_text(str(job.process.pid))  # before it has started anything
            done = job.wait()
        assert "oom_kill 1" in (folder / "memory.oom_control").read_text()
    last = done.stderr[done.stderr.rindex("horovodrun: ") :]
    assert last.startswith("horovodrun: rank 1 on host localhost was killed by SIGKILL: out of memory\n"), done.stderr
    assert "hint: the job's memory limit (cgroup) was reached" in last, done.stderr
    assert done.code == 128 + 9


def reduce_among_many() -> tuple[float, float, int]:
    hvd.init()
    small = hvd.allreduce(np.full(3, hvd.rank(), np.int64), op=hvd.Sum, name="small")
    large = hvd.allreduce(np.full(100_000, hvd.rank() + 1, np.float32), op=hvd.Max, name="large")
    rows = hvd.allgather(np.full((hvd.rank() % 3, 2), hvd.rank(), np.int32), name="rows")
    hvd.shutdown()
    return int(small[0]), float(large.max()), len(rows)


@pytest.mark.slow("32 ranks")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "transport"), [(32, "shm"), later(64, "shm"), later(64, "tcp")])
def test_many_ranks_start_reduce_and_stop(ranks: int, transport: str) -> None:
    with World(ranks, {"HOROVOD_TRANSPORT": transport}) as world:
        expected = (sum(range(ranks)), float(ranks), sum(rank % 3 for rank in range(ranks)))
        assert world.run(reduce_among_many) == [expected] * ranks
