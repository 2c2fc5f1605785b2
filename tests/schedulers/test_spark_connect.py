# SPDX-License-Identifier: Apache-2.0
"""horovod.spark.run with a client of Spark Connect, whose job is supervised in the client, or in task 0."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import SLACK_S, later
from support.schedulers import spark as support
from support.schedulers.spark import assert_nothing_is_left, connect_session, kill_above

import horovod.core as hvd
import horovod.spark
from horovod.core import pickling
from horovod.settings import changed_environment
from horovod.spark.common.backend import default_num_proc
from horovod.spark.common.store import LocalStore
from horovod.spark.connect import ConnectSession

pytestmark = pytest.mark.thorough  # a server of its own takes as long to start as most other files take to run
pytest.importorskip("pyspark", reason="not run: pyspark is not installed")
pytest.importorskip("grpc", reason="not run: grpcio is not installed")
for module in (support, sys.modules[__name__]):  # the ranks cannot import the tests
    pickling.cloudpickle.register_pickle_by_value(module)

IN = ["driver", "task"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with connect_session("local[2]", tmp_path_factory.mktemp("home")) as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_is_left(spark: Any) -> Iterator[None]:
    yield
    assert_nothing_is_left()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("horovod")]
    assert not spark.getTags()


def run(where: str, *arguments: Any, **more: Any) -> list[Any]:
    with changed_environment(HOROVOD_SPARK_SUPERVISOR=where):
        return horovod.spark.run(*arguments, **{"num_proc": 2, "verbose": 0, **more})


def train(factor: float, how: str = "") -> dict[str, Any]:
    hvd.init()
    print(f"rank {hvd.rank()} of {hvd.size()}")
    print(f"error of rank {hvd.rank()}", file=sys.stderr)
    if hvd.rank() == 1:
        if how == "raise":
            raise OwnError(1, "own")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "worker":
            kill_above("pyspark.daemon")
    total = hvd.allreduce(np.array([factor * (hvd.rank() + 1)]), op=hvd.Sum, name="total")
    return {"place": (hvd.rank(), hvd.local_rank(), hvd.cross_size()), "total": float(total[0])}


class OwnError(Exception):
    def __init__(self, rank: int, why: str) -> None:
        super().__init__(rank, why)


@pytest.mark.parametrize("where", IN)
def test_results_come_by_rank_and_output_goes_where_the_caller_says(where: str) -> None:
    out, err = io.StringIO(), io.BytesIO()
    results = run(where, train, (2.0,), stdout=out, stderr=err, verbose=1)
    assert results == [{"place": (rank, rank, 1), "total": 6.0} for rank in (0, 1)]
    assert sorted(out.getvalue().splitlines()) == [f"[{rank}]<stdout>:rank {rank} of 2" for rank in (0, 1)]
    said = err.getvalue().decode()
    assert "[1]<stderr>:error of rank 1\n" in said
    assert ("what the ranks print comes at the end" in said) == (where == "task")


@pytest.mark.parametrize("where", [later("driver"), "task"])
@pytest.mark.parametrize(
    "how, kind, text, cause",
    [
        ("raise", OwnError, r"\(1, 'own'\)", "(?s)rank 1 on host .+:\nTraceback .+ in train\n.+OwnError"),
        later(
            "kill",
            RuntimeError,
            "(?s)horovod.spark.run: the job ended with exit code 137; no result from rank 1\n.*"
            "horovodrun: rank 1 on host .+ was killed by SIGKILL\n.*\nhint: ",
            None,
        ),
        later("worker", RuntimeError, "Spark job has failed: Python worker exited unexpectedly", None),
    ],
)
def test_one_error_names_the_cause(where: str, how: str, kind: type[Exception], text: str, cause: str | None) -> None:
    begun = time.monotonic()
    with pytest.raises(kind, match=text) as caught:
        run(where, train, (1.0, how), stdout=io.StringIO(), stderr=io.StringIO())
    assert time.monotonic() - begun < 5.0 + SLACK_S
    assert re.search(cause or "^None$", str(caught.value.__cause__))


def hang(path: str) -> None:
    hvd.init()
    print("all are here")
    with open(path, "w"):  # a FIFO: the reader learns it
        signal.pause()


@pytest.mark.parametrize("where", [later("driver"), "task"])
@pytest.mark.parametrize("how", ["interrupt", later("ctrl-c")])
def test_a_job_that_is_interrupted_ends_its_ranks(where: str, how: str, spark: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "all")

    def interrupt() -> None:
        with open(tmp_path / "all"):  # until a rank has opened it
            pass
        if how == "interrupt":
            spark.interruptAll()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    waits = threading.Thread(target=interrupt)
    waits.start()
    expected = pytest.raises(KeyboardInterrupt)
    if how == "interrupt":
        text = "horovod.spark.run: Spark job has failed: Operation has been canceled"
        expected = pytest.raises(RuntimeError, match=text)  # type: ignore[assignment]
    with expected:
        run(where, hang, (str(tmp_path / "all"),), stdout=io.StringIO(), stderr=io.StringIO())
    waits.join()


@pytest.mark.parametrize("where", IN)
def test_tasks_that_find_no_slot_in_time(where: str) -> None:
    """A client does not learn how many slots there are."""
    text = "^Timed out waiting for Spark tasks to start: 0 of 3 tasks came within 3 s\nhint: each rank"
    with pytest.raises(TimeoutError, match=text):
        run(where, train, (1.0,), num_proc=3, start_timeout=3)


def test_a_client_that_tasks_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectSession, "addresses", lambda *_: ["127.0.0.2"])
    text = r"the task on host .* cannot reach the driver: .* at 127.0.0.2:\d+ \(Connection refused\)\nhint: "
    with pytest.raises(RuntimeError, match=text + "open the ports .*; or set HOROVOD_SPARK_SUPERVISOR=task"):
        run("driver", train, (1.0,), stderr=io.StringIO())


def test_an_elastic_job_is_refused_by_name() -> None:
    text = "horovod.spark.run_elastic does not work with Spark Connect, which .*\nhint: use horovod.spark.run, or"
    with pytest.raises(NotImplementedError, match=text):
        horovod.spark.run_elastic(train, (1.0,), num_proc=2)


def count(rows: Any) -> list[int]:
    return [int(value) for batch in rows for value in batch["id"]]


def test_ranks_read_the_rows_of_a_frame(spark: Any) -> None:
    given = {"num_proc": 2, "verbose": 0, "stdout": io.StringIO(), "stderr": io.StringIO()}
    first, second = horovod.spark.run_on_dataframe(count, spark.range(100), **given)
    assert len(first) == len(second) == 50 and sorted(first + second) == list(range(100))
    text = "is task, but the driver decides which rows a rank reads\nhint: "
    with changed_environment(HOROVOD_SPARK_SUPERVISOR="task"), pytest.raises(ValueError, match=text):
        horovod.spark.run_on_dataframe(count, spark.range(100), **given)


@pytest.mark.parametrize("where", IN)
def test_an_estimator_fits_and_its_model_transforms(where: str, spark: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="not run: torch is not installed")
    from pyspark.ml.linalg import Vectors

    from horovod.spark.torch import TorchEstimator

    frame = spark.createDataFrame([(Vectors.dense([x]), 2.0 * x + 1.0) for x in range(-8, 8)], ["x", "y"])
    model = torch.nn.Linear(1, 1)
    estimator = TorchEstimator(
        store=LocalStore(str(tmp_path)),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        loss=torch.nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        batch_size=4,
        epochs=40,
        verbose=0,
    )
    with changed_environment(HOROVOD_SPARK_SUPERVISOR=where):
        trained = estimator.fit(frame)  # in as many ranks as Spark's default parallelism
    assert default_num_proc() == 2
    rows = trained.transform(frame).collect()
    assert len(rows) == 16 and all(abs(row.y__output - row.y) < 0.3 for row in rows)
