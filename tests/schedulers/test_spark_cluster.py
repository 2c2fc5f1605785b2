# SPDX-License-Identifier: Apache-2.0
"""horovod.spark.run on two executors, each with a GPU that a script invents; and drivers that are killed."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import SLACK_S
from support.schedulers import spark as support
from support.schedulers.spark import (
    GONE_S,
    assert_nothing_is_left,
    kill_above,
    processes_of_jobs,
    session,
    train_elastically,
)

import horovod.core as hvd
import horovod.spark
from horovod.core import pickling
from horovod.settings import current_environment
from horovod.spark import connect
from horovod.spark.job import SparkJob
from horovod.spark.task import get_available_devices

pytest.importorskip("pyspark", reason="not run: pyspark is not installed")
pytestmark = pytest.mark.thorough
for module in (support, sys.modules[__name__]):  # the ranks cannot import the tests
    pickling.cloudpickle.register_pickle_by_value(module)

# Both workers are on this machine: each takes the next GPU.
DISCOVERY = """#!/bin/sh
at=4
while ! mkdir {folder}/$at 2>/dev/null; do at=$((at + 1)); done
echo '{{"name": "gpu", "addresses": ["'$at'"]}}'
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("gpus")
    script = folder / "discover"
    script.write_text(DISCOVERY.format(folder=folder))
    script.chmod(0o755)
    gpus = {f"{of}_resource_gpu_amount": "1" for of in ("worker", "executor", "task")}
    gpus["worker_resource_gpu_discoveryScript"] = str(script)
    gpus["task_maxFailures"] = "4"
    with session("local-cluster[2,1,1024]", tmp_path_factory.mktemp("home"), **gpus) as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert_nothing_is_left()


def run(*arguments: Any, **more: Any) -> list[Any]:
    quiet = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    return horovod.spark.run(*arguments, **{"num_proc": 2, "verbose": 0, **quiet, **more})


def look() -> tuple[Any, ...]:
    hvd.init()
    total = float(hvd.allreduce(np.ones(1), op=hvd.Sum, name="total")[0])
    place = (hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_size(), total)
    return place, current_environment()["CUDA_VISIBLE_DEVICES"], get_available_devices()


def kill(what: str) -> None:
    hvd.init()
    if hvd.rank() == 1:
        kill_above(what)
    signal.pause()


def test_executors_of_one_machine_are_one_host_whose_ranks_see_all_their_gpus(spark: Any) -> None:
    results = run(look)
    assert [place for place, _, _ in results] == [(0, 0, 2, 1, 2.0), (1, 1, 2, 1, 2.0)]
    own = [devices for _, _, devices in results]
    assert sorted(own) == [["4"], ["5"]]
    assert {visible for _, visible, _ in results} == {",".join(device for (device,) in own)}
    seen = run(look, env={"HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "1", "CUDA_VISIBLE_DEVICES": "7,8"})
    assert [visible for _, visible, _ in seen] == ["7,8", "7,8"]


def test_a_task_that_spark_starts_again_does_not_join(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with dynamic allocation: tasks without a barrier are retried. The first cause stands."""

    class Plain(SparkJob):
        def __init__(self, context: Any, number: int, size: int, barrier: bool, frame: Any) -> None:
            assert barrier
            super().__init__(context, number, size, False, frame)

    monkeypatch.setattr(connect, "SparkJob", Plain)
    assert len(run(look)) == 2
    with pytest.raises(RuntimeError, match="no result from rank 0, 1\n.*task . on .* was lost: its agent"):
        run(kill, ("pyspark.daemon",))


def test_a_lost_executor_is_named_with_its_ranks(spark: Any) -> None:
    begun = time.monotonic()
    text = r"Spark job has failed: executor . was lost: .*137; rank 1 on .+ ended with it\nhorovodrun: task . on .+ was"
    with pytest.raises(RuntimeError, match=text):
        run(kill, ("CoarseGrainedExecutorBackend",))
    assert time.monotonic() - begun < 10.0 + SLACK_S
    assert len(run(look)) == 2  # on the executor that Spark has started in its place


@pytest.mark.parametrize("what", ["pyspark.daemon", "CoarseGrainedExecutorBackend"])
def test_an_elastic_job_goes_on_with_a_task_in_place_of_a_lost_one(spark: Any, what: str) -> None:
    """Spark starts it again."""
    errors = io.StringIO()
    done = horovod.spark.run_elastic(
        train_elastically, (what, 20), num_proc=2, min_num_proc=1, verbose=1, stdout=errors, stderr=errors
    )
    assert done == [(0, 2, True), (1, 2, True)], errors.getvalue()


def read_and_kill(rows: Any, what: str) -> None:
    hvd.init()
    assert sum(len(batch["id"]) for batch in rows) == 500
    if hvd.rank() == 1:
        kill_above(what)
    signal.pause()


@pytest.mark.parametrize("what", ["pyspark.daemon", "CoarseGrainedExecutorBackend"])
def test_no_rows_are_left_on_a_disk_if_a_task_or_an_executor_is_killed(spark: Any, what: str) -> None:
    quiet = {"stdout": io.StringIO(), "stderr": io.StringIO(), "verbose": 0}
    with pytest.raises(RuntimeError, match="Spark job has failed: .*; rank 1 on .* ended with it"):
        horovod.spark.run_on_dataframe(read_and_kill, spark.range(1000), (what,), num_proc=2, **quiet)
    assert_nothing_is_left()
    assert not list(Path(spark.conf.get("spark.local.dir")).rglob("horovod-rows-*"))


DRIVER = """
import signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from support.schedulers.spark import session
import horovod.spark

def hang():
    import signal, horovod.core as hvd
    hvd.init()
    print("ready", flush=True)
    signal.pause()

with session("local[2]", Path({home!r})):
    horovod.spark.run(hang, num_proc=2)
"""


def test_nothing_is_left_of_a_driver_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(path=[one for one in sys.path if one.endswith("tests")], home=str(tmp_path)))
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as driver:
        assert driver.stdout is not None
        ready = [line for line in (driver.stdout.readline() for _ in range(2)) if re.search("ready", line)]
        assert len(ready) == 2 and processes_of_jobs()
        os.kill(driver.pid, signal.SIGKILL)
        assert_nothing_is_left(GONE_S)
