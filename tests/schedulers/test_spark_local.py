# SPDX-License-Identifier: Apache-2.0
"""horovod.spark.run in a local session: two slots, in which all the ways of a job's end happen."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import SLACK_S, later
from support.pages import ROOT, scripts_of
from support.patience import wait_until
from support.schedulers import spark as support
from support.schedulers.spark import (
    Watched,
    assert_nothing_is_left,
    kill_above,
    processes_of_jobs,
    session,
    train_elastically,
)

import horovod.core as hvd
import horovod.spark
from horovod.core import pickling
from horovod.settings import changed_environment, current_environment
from horovod.spark.connect import Session

pytest.importorskip("pyspark", reason="not run: pyspark is not installed")
for module in (support, sys.modules[__name__]):  # the ranks cannot import the tests
    pickling.cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with session("local[2]", tmp_path_factory.mktemp("home")) as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_is_left(spark: Any) -> Iterator[None]:
    yield
    assert_nothing_is_left()
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds(), tracker.getActiveJobsIds)  # Spark notes an end a moment later
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("horovod")]
    assert not list(Path(spark.conf.get("spark.local.dir")).rglob("horovod-rows-*"))


def run(*arguments: Any, **more: Any) -> list[Any]:
    return horovod.spark.run(*arguments, **{"num_proc": 2, "verbose": 0, **more})


def train(factor: float, offset: float = 0.0) -> dict[str, Any]:
    hvd.init()
    total = hvd.allreduce(np.array([factor * (hvd.rank() + 1)]), op=hvd.Sum, name="total")
    print(f"rank {hvd.rank()} of {hvd.size()}")
    print(f"error of rank {hvd.rank()}", file=sys.stderr)
    environment = current_environment()
    return {
        "place": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()),
        "total": float(total[0]) + offset,
        "variables": [environment.get(name) for name in ("MARK", "HOROVOD_SPARK_DEVICES", "CUDA_VISIBLE_DEVICES")],
        "python": sys.executable,
        "threads": environment["OMP_NUM_THREADS"],
    }


@pytest.mark.slow("jobs of Spark")
@pytest.mark.parametrize("supervisor", ["driver", later("task")])
def test_results_come_by_rank_and_output_goes_where_the_caller_says(supervisor: str) -> None:
    out, err = io.StringIO(), io.BytesIO()
    env = {"MARK": "yes", "OMP_NUM_THREADS": "1", "HOROVOD_SPARK_SUPERVISOR": supervisor}
    results = run(train, (2.0,), {"offset": 0.5}, env=env, stdout=out, stderr=err, verbose=2)
    assert [one["place"] for one in results] == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]
    for one in results:
        assert (one["total"], one["variables"]) == (6.5, ["yes", None, None])
        assert (one["python"], one["threads"]) == (sys.executable, "1")
    assert sorted(out.getvalue().splitlines()) == [f"[{rank}]<stdout>:rank {rank} of 2" for rank in (0, 1)]
    for rank in (0, 1):
        assert f"[{rank}]<stderr>:error of rank {rank}\n".encode() in err.getvalue()
    assert b"horovodrun: all hosts are ready" in err.getvalue()


@pytest.mark.slow("jobs of Spark")
def test_jobs_follow_each_other_and_num_proc_is_inferred(capsys: pytest.CaptureFixture[str]) -> None:
    """The default output is sys.stdout, whatever it is."""
    for offset in (1.0, 2.0):
        (first, second) = horovod.spark.run(train, kwargs={"factor": 1.0, "offset": offset}, use_gloo=True)
        assert first["total"] == second["total"] == 3.0 + offset
    out, err = capsys.readouterr()
    assert out.count("[1]<stdout>:rank 1 of 2\n") == 2
    assert err.count("horovod.spark: 2 processes, inferred from spark.default.parallelism\n") == 2


@pytest.mark.thorough
def test_the_script_of_the_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")
    (script,) = scripts_of(ROOT / "docs" / "spark.md")
    exec(compile(script.code, script.file, "exec"), {"__name__": "__main__"})
    printed = [re.sub(r"\d+\.\d+", "0.0", line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(printed) == sorted(re.sub(r"\d+\.\d+", "0.0", line) for line in script.printed)


def test_output_that_cannot_be_written_does_not_end_the_job() -> None:
    class Broken:
        def write(self, text: str) -> None:
            raise OSError("no such screen")

    err = io.StringIO()
    with pytest.warns(UserWarning, match="output can no longer be written: OSError.*no such screen"):
        assert len(run(train, (1.0,), stdout=Broken(), stderr=err, prefix_output_with_timestamp=True)) == 2
    for line in err.getvalue().splitlines():
        stamp, _, rest = line.partition("[")
        assert re.search(r"\d\d:\d\d:\d\d", stamp) and "<stderr>:error of rank" in rest


class OwnError(Exception):
    def __init__(self, rank: int, why: str) -> None:
        super().__init__(rank, why)


def fail(how: str) -> None:
    hvd.init()
    if hvd.rank() == 1:
        if how == "raise":
            raise OwnError(1, "own")
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "worker":
            kill_above("pyspark.daemon")
    hvd.allreduce(np.ones(4), name="never")


@pytest.mark.parametrize(
    "how, kind, text, cause",
    [
        ("raise", OwnError, r"\(1, 'own'\)", "(?s)rank 1 on host .+:\nTraceback .+ in fail\n.+OwnError"),
        ("exit", RuntimeError, r"rank 1 called sys.exit\(3\)", "rank 1 on host "),
        (
            "kill",
            RuntimeError,
            "(?s)horovod.spark.run: the job ended with exit code 137; no result from rank 1\n.*"
            "horovodrun: rank 1 on host .+ was killed by SIGKILL\n.*as the ranks saw it: .*died.*\nhint: ",
            None,
        ),
        (
            "worker",
            RuntimeError,
            "Spark job has failed: Python worker exited unexpectedly.*; rank 1 on .+ ended with it\nhorovodrun: task 1",
            None,
        ),
    ],
)
def test_one_error_names_the_cause(how: str, kind: type[Exception], text: str, cause: str | None) -> None:
    begun = time.monotonic()
    with pytest.raises(kind, match=text) as caught:
        run(fail, (how,), stdout=io.StringIO(), stderr=(err := io.StringIO()), verbose=1)
    assert time.monotonic() - begun < 3.0 + SLACK_S
    assert "horovodrun: rank 1" not in err.getvalue(), "the error says so"
    assert re.search(cause or "^None$", str(caught.value.__cause__))


@pytest.mark.parametrize("kill", [later(None), ""])
def test_an_elastic_job_goes_on_with_a_rank_in_place_of_a_lost_one(kill: str | None) -> None:
    """Its agent starts it again in its task."""
    errors = io.StringIO()
    done = horovod.spark.run_elastic(
        train_elastically, (kill, 10), num_proc=2, min_num_proc=1, stdout=errors, stderr=errors
    )
    assert done == [(0, 2, kill is not None), (1, 2, kill is not None)], errors.getvalue()
    assert ("1 loss survived" in errors.getvalue()) == (kill is not None)


@pytest.mark.parametrize(
    "count, verbosity, shown", [(2, "log_callback_only", False), later(2, "all", True), later(-2, "all", True)]
)
def test_horovod_runner_returns_the_result_of_rank_0(
    count: int, verbosity: str, shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """In Spark tasks, or in processes of this machine."""
    result = horovod.spark.HorovodRunner(np=count, driver_log_verbosity=verbosity).run(train, factor=2.0)
    assert (result["place"][:2], result["total"]) == ((0, 2), 6.0)
    assert ("[1]<stdout>:rank 1 of 2\n" in capfd.readouterr().out) == shown


@pytest.mark.thorough
def test_the_data_services_workers_run_in_spark_tasks(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
    from horovod.spark.tensorflow import compute_worker
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    file = str(tmp_path / "config.json")
    job = threading.Thread(target=compute_worker.main, args=(1, "compute", file, 60))
    job.start()
    config = TfDataServiceConfig.read(file, wait_for_file_creation=True)
    assert config.workers_per_dispatcher == 2
    dataset = tf.data.Dataset.range(20).map(lambda x: x * x).send_to_data_service(config, 0, 1)
    assert sorted(int(value) for value in dataset.as_numpy_iterator()) == [x * x for x in range(20)]
    config.compute_client().shutdown()
    job.join()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="2 workers cannot be dealt to 3 dispatchers evenly"):
        compute_worker.main(3, "compute", file, 60)


def hang() -> None:
    hvd.init()
    print("all are here")
    signal.pause()


def test_a_job_that_spark_cancels_ends_its_ranks(spark: Any) -> None:
    out = Watched("all are here", spark.sparkContext.cancelAllJobs)
    with pytest.raises(RuntimeError, match="horovod.spark.run: Spark job has failed: Job .* cancelled") as caught:
        run(hang, stdout=out, stderr=io.StringIO())
    assert "\tat " not in str(caught.value)


def test_ctrl_c_ends_the_job_and_cancels_the_spark_job() -> None:
    out = Watched("all are here", lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        run(hang, stdout=out, stderr=(err := io.StringIO()), verbose=1)
    assert "SIG" not in err.getvalue() and "ending all ranks" not in err.getvalue()


def test_the_end_of_the_supervising_process_ends_the_ranks() -> None:
    def kill() -> None:
        (supervisor,) = [pid for pid, text in processes_of_jobs().items() if "function.supervised" in text]
        os.kill(supervisor, signal.SIGKILL)

    text = "no result from rank 0, 1\nthe process that supervised the job was killed by SIGKILL"
    with pytest.raises(RuntimeError, match=text):
        run(hang, stdout=Watched("all are here", kill), stderr=io.StringIO())


def test_more_ranks_than_slots_are_refused_at_once() -> None:
    begun = time.monotonic()
    text = r"needs 3 tasks at the same time, but Spark has 2 slots \(local\[2\]\)\nhint: "
    with pytest.raises(RuntimeError, match=text):
        run(train, (1.0,), num_proc=3)
    assert time.monotonic() - begun < 2.0 + SLACK_S


def test_tasks_that_do_not_start_in_time(spark: Any, tmp_path: Path) -> None:
    """Another job has one of the slots."""
    release = tmp_path / "release"
    os.mkfifo(release)

    def occupy(_: Any) -> Iterator[Any]:
        Path(release).read_bytes()  # until its other end is closed
        return iter(())

    busy = threading.Thread(target=lambda: spark.sparkContext.parallelize([0], 1).mapPartitions(occupy).collect())
    busy.start()
    try:
        with open(release, "w"):
            text = "^Timed out waiting for Spark tasks to start: 0 of 2 tasks came within 1 s\nhint: each rank"
            with pytest.raises(TimeoutError, match=text):
                run(train, (1.0,), start_timeout=1)
    finally:
        busy.join()
    assert len(run(train, (1.0,), stdout=io.StringIO(), stderr=io.StringIO())) == 2


def test_what_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"horovod.spark.run: fn cannot be pickled: .* \(in the variable lock"):
        run(lambda: lock.locked())
    with pytest.raises(TypeError, match="horovod: the result of rank . cannot be pickled: cannot pickle"):
        run(threading.Lock, stdout=io.StringIO(), stderr=io.StringIO())


def read(rows: Any, epochs: int) -> tuple[list[list[int]], dict[str, Any], int, bool]:
    batches = [list(rows) for _ in range(epochs)]
    ids = [[number for batch in epoch for number in batch["id"].tolist()] for epoch in batches]
    hvd.init()
    first = batches[0][0]
    assert all((batch["x"][:, 1] == 2 * batch["id"]).all() and batch["v"].shape[1] == 2 for batch in batches[0])
    kinds = {name: (str(values.dtype), values.shape[1:]) for name, values in first.items()}
    return ids, kinds, len(rows), os.path.exists(current_environment()["HOROVOD_SPARK_ROWS"])


def frame_of(spark: Any, rows: int) -> Any:
    from pyspark.ml.functions import array_to_vector

    frame = spark.range(0, rows, 1, 7).selectExpr("id", "array(id, 2 * id) x", "array(double(id), 0.5D) v")
    return frame.withColumn("v", array_to_vector("v"))


def on_rows(*arguments: Any, **more: Any) -> list[Any]:
    quiet = {"stdout": io.StringIO(), "stderr": io.StringIO(), "env": {"OMP_NUM_THREADS": "1"}}
    return horovod.spark.run_on_dataframe(*arguments, **{"num_proc": 2, "verbose": 0, **quiet, **more})


@pytest.mark.slow("jobs of Spark")
@pytest.mark.parametrize("rows", [1003, pytest.param(3, marks=pytest.mark.thorough)])
def test_ranks_read_equally_many_rows_of_a_frame_and_no_row_twice(spark: Any, rows: int) -> None:
    """Spark's partitions are of unequal length. The frame's row that is left out is another one in the next epoch."""
    answers = on_rows(read, frame_of(spark, rows), (2,), batch_size=40)
    share = rows // 2
    kinds = {"id": ("int64", ()), "x": ("int64", (2,)), "v": ("float32", (2,))}
    for ids, found, batches, is_there in answers:
        assert [len(epoch) for epoch in ids] == [share, share] and found == kinds
        assert batches == -(-share // 40) and not is_there
    for epoch in (0, 1):
        assert len({number for ids, *_ in answers for number in ids[epoch]}) == 2 * share
    assert {number for ids, *_ in answers for epoch in ids for number in epoch} == set(range(rows))
    assert rows < 40 or answers[0][0][0] != sorted(answers[0][0][0])


def test_a_frame_that_ranks_cannot_read_is_refused(spark: Any) -> None:
    def refused(kind: type[Exception], text: str, df: Any, fn: Any = read) -> None:
        with pytest.raises(kind, match=text):
            on_rows(fn, df, (1,))

    text = "^horovod.spark.run_on_dataframe: the DataFrame has {} for 2 ranks\nhint: num_proc=1, or more data"
    refused(ValueError, text.format("1 row"), spark.range(10).where("id = 7"))
    refused(ValueError, text.format("0 rows"), spark.range(0))  # for which Spark starts no task
    refused(ValueError, "column `m` is map<string,int>: no rank can", spark.range(9).selectExpr("map('a', 1) as m"))
    refused(TypeError, "^horovod.spark.run_on_dataframe: fn cannot be", spark.range(9), threading.Lock().acquire)


@pytest.mark.thorough
def test_an_error_of_the_frame_or_of_its_rows_is_told(spark: Any) -> None:
    from pyspark.sql import functions

    fails = functions.udf(lambda number: 1 // (number - 50), "long")
    frame = spark.range(100)
    text = "^horovod.spark.run_on_dataframe: Spark job has failed: ZeroDivisionError: "
    with pytest.raises(RuntimeError, match=text):
        on_rows(read, frame.select(fails("id")), (1,))
    with pytest.raises(ValueError, match="column `id`, this rank's rows of the DataFrame, row .*: the value is null"):
        on_rows(read, frame.selectExpr("if(id = 7, null, id) id"), (1,))


def test_a_python_without_hvd_is_named(spark: Any, tmp_path: Path) -> None:
    """One of the same version, which finds pyspark alone."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    context, usual = spark.sparkContext, spark.sparkContext.pythonExec
    context.pythonExec = str(bare)
    try:
        # With PYTHONPATH, as tools/mutate sets it, Horovod is there, and what it needs is not.
        text = "horovod.spark.run: the Python of host .* lacks hvd: .*: No module named '(horovod|numpy)'\nhint: inst"
        with pytest.raises(RuntimeError, match=text) as caught:
            run(train, (1.0,), stderr=io.StringIO())
    finally:
        context.pythonExec = usual
    assert "Traceback" not in str(caught.value) and "\tat " not in str(caught.value)


def test_a_driver_that_tasks_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "addresses", lambda *_: ["127.0.0.2", "127.0.0.3"])
    text = r"the task on host .* cannot reach the driver: .* at 127.0.0.2:\d+ \(Connection refused\), 127.0.0.3:\d+ "
    with pytest.raises(RuntimeError, match=text + r"\(Connection refused\)\nhint: set spark.driver.host"):
        run(train, (1.0,), stderr=io.StringIO())


@pytest.mark.slow("jobs of Spark")
@pytest.mark.parametrize("variables", [{}, {"SPARK_CONNECT_MODE_ENABLED": "1"}])
def test_without_a_session_the_error_says_so(variables: dict[str, str]) -> None:
    code = "import horovod.spark as hs; hs.run(print)"
    with changed_environment(**variables):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    text = "Could not find an active SparkContext: horovod.spark.run needs a Spark session, and this process has none\n"
    assert text + "hint: " in done.stderr


def test_a_python_that_is_not_there_is_told_for_each_task() -> None:
    names = ".*hint: executable names a Python by its path on all executors"
    text = f"(?s)2 of 2 tasks are not ready.*task 0 on .* has no program /nowhere/python{names}.*task 1 on "
    with pytest.raises(RuntimeError, match=text):
        run(train, (1.0,), executable="/nowhere/python", stderr=io.StringIO())


def test_transform_by_columns_and_by_rows_before_spark_4_1(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from pyspark.ml.linalg import DenseVector, VectorUDT
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    from horovod.spark.torch import TorchModel

    class Pair(torch.nn.Module):
        def forward(self, wide: Any, one: Any) -> Any:
            return wide * 2, wide.sum(1) + one

    rows = [([float(n), 1.0], n, f"text {n}", [0.0, 0.0], DenseVector([n])) for n in range(2500)]
    schema = StructType.fromDDL("`a.b` array<float>, n int, text string, y array<double>").add("v", VectorUDT())
    frame = spark.createDataFrame(rows, schema)
    options = {"feature_columns": ["a.b", "v"], "label_columns": ["y", "n"], "input_shapes": [[-1, 2], [-1]]}
    model = TorchModel(model=Pair(), **options)
    made = model.transform(frame.repartition(2))
    assert made.columns == [*frame.columns, "y__output", "n__output"]
    plan = made.where("n__output > 7 and y__output is not null")._jdf.queryExecution().executedPlan().toString()
    assert plan.count("ArrowEvalPython ") == 1, plan
    found = sorted(made.collect(), key=lambda row: row.n)
    assert [row.n__output for row in found] == [2 * n + 1 for n in range(2500)]
    assert all(row.y__output == DenseVector([2.0 * row.n, 2.0]) and row.text == f"text {row.n}" for row in found)
    assert model.transform(frame.where("n < 0")).collect() == []
    monkeypatch.delattr(functions, "arrow_udf")
    by_rows = model.transform(frame.repartition(2))
    assert "MapInArrow" in by_rows._jdf.queryExecution().executedPlan().toString()
    assert by_rows.schema == made.schema and sorted(by_rows.collect(), key=lambda row: row.n) == found
    assert model.transform(frame.where("n < 0")).collect() == []
