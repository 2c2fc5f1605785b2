# SPDX-License-Identifier: Apache-2.0
"""Settings that change how a job runs, seen at work: what the variable is for happens with it, and not without it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.jobs import Job
from support.world import WorldPool

import horovod.core as hvd

STALLED = """
import os
import numpy as np
import horovod.core as hvd
hvd.init()
if hvd.rank() == 1:
    os.read(os.open("go", os.O_RDONLY), 1)
hvd.allreduce(np.ones(1), name="x")
"""
TIME = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] "


@pytest.mark.parametrize(
    ("flags", "variables", "start"),
    [
        ((), {}, ""),
        ((), {"HOROVOD_LOG_HIDE_TIME": "0"}, TIME),
        ((), {"HOROVOD_LOG_TIMESTAMP": "1"}, TIME),
        (("--log-with-timestamp",), {}, TIME),
        (("--log-hide-timestamp",), {"HOROVOD_LOG_HIDE_TIME": "0"}, ""),
    ],
)
def test_warnings_carry_the_time_where_it_is_asked_for(
    tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], start: str
) -> None:
    (tmp_path / "train.py").write_text(STALLED)
    os.mkfifo(tmp_path / "go")
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5", **variables}
    with Job(tmp_path, "-np", "2", *flags, [sys.executable, "train.py"], env=env) as job:
        job.wait_for_line(rf"\[0\]<stderr>:{start}horovod: warning: stall: rank 0 waited", "stderr")
        os.close(os.open(tmp_path / "go", os.O_WRONLY))
        assert job.wait().code == 0


def test_an_error_level_keeps_warnings_back(tmp_path: Path) -> None:
    """A stall that ends the job has been reported before, but for the level."""
    (tmp_path / "train.py").write_text(STALLED)
    os.mkfifo(tmp_path / "go")
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    for level, warned in (("warning", True), ("error", False)):
        with Job(tmp_path, "-np", "2", "--log-level", level, [sys.executable, "train.py"], env=env) as job:
            done = job.wait()
        assert done.code != 0 and "the stall limit is reached" in done.stderr, done
        assert ("warning: stall" in done.stderr) == warned, done.stderr


def cores_of_threads(expected: str) -> list[str]:
    """The cores that each thread may run on; waits until one may run on `expected` alone, where that is given."""
    hvd.init()
    while True:
        lists = []
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                status = Path(f"/proc/self/task/{thread}/status").read_text()
                lists.append(re.search(r"Cpus_allowed_list:\s*(\S+)", status)[1])  # type: ignore[index]
        if not expected or expected in lists:
            return lists
        time.sleep(0.02)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="not run: one core, on which every thread is")
def test_the_engine_s_thread_runs_on_the_core_of_its_rank(worlds: WorldPool) -> None:
    first, second = (str(core) for core in sorted(os.sched_getaffinity(0))[:2])
    pinned = worlds(2, {"HOROVOD_TRANSPORT": "shm", "HOROVOD_THREAD_AFFINITY": f"{second},{first}"})
    for lists, core in zip(pinned.run(cores_of_threads, per_rank=[(second,), (first,)]), (second, first), strict=True):
        assert lists.count(core) == 1 and len(lists) >= 2, lists
    for lists in worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(cores_of_threads, ""):
        assert len(set(lists)) == 1, lists


def batches_of_groups() -> int:
    hvd.init()
    before = hvd.statistics()["batches"]
    for _ in range(20):
        pair = [np.ones(2), np.ones(3)]
        handles = [hvd.grouped_allreduce_async(pair, name=f"group {number}", op=hvd.Sum) for number in range(6)]
        hvd.barrier()
        for handle in handles:
            assert [float(part[0]) for part in hvd.synchronize(handle)] == [2.0, 2.0]
    return int(hvd.statistics()["batches"] - before)


def test_groups_are_fused_with_each_other_unless_that_is_off(worlds: WorldPool) -> None:
    apart = {"HOROVOD_TRANSPORT": "shm", "HOROVOD_DISABLE_GROUP_FUSION": "1"}
    assert min(worlds(2, apart).run(batches_of_groups)) >= 20 * (6 + 1)
    assert max(worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(batches_of_groups)) < 20 * (6 + 1)


@pytest.mark.parametrize("marked", ["0", "1"])
def test_the_variable_of_the_timeline_writes_one_with_cycles_where_they_are_wanted(tmp_path: Path, marked: str) -> None:
    path = tmp_path / "timeline.json"
    (tmp_path / "train.py").write_text(
        "import numpy as np\nimport horovod.core as hvd\nhvd.init()\nhvd.allreduce(np.ones(1), name='x')\n"
    )
    env = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": marked, "OMP_NUM_THREADS": "1"}
    with Job(tmp_path, "-np", "2", [sys.executable, "train.py"], env=env) as job:
        assert job.wait().code == 0
    events = json.loads(path.read_text())
    assert {event["pid"] for event in events if event["name"] == "NEGOTIATE_ALLREDUCE"} == {0, 1}
    assert any(event["name"] == "CYCLE_START" for event in events) == (marked == "1")
