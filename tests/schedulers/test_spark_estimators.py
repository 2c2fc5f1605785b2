# SPDX-License-Identifier: Apache-2.0
"""Estimators on a DataFrame: two ranks learn XOR; data, checkpoints, models and errors. One JVM for the file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="not run: pyspark is not installed")

import horovod
from horovod.spark.common import util
from horovod.spark.common.backend import Backend
from horovod.spark.common.store import LocalStore, Store

ROWS = 4000


class Ranks(Backend):
    """Ranks on this machine, without Spark's tasks."""

    def __init__(self, size: int = 2) -> None:
        self.size, self.runs = size, 0

    def run(self, fn: Any, args: Sequence[Any] = (), kwargs: Any = None, env: Mapping[str, str] | None = None) -> Any:
        self.runs += 1
        before = dict(os.environ)
        os.environ.update({"OMP_NUM_THREADS": "1", **(env or {})})
        try:
            return horovod.run(fn, args=args, kwargs=kwargs, np=self.size)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def num_processes(self) -> int:
        return self.size


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(home / "warehouse"))
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture(scope="module")
def xor(spark: Any) -> Any:
    """Two features, one as a vector beside it, the label, a weight and a mark for validation."""
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import BooleanType, DoubleType, IntegerType, StructField, StructType

    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (ROWS, 2))
    points = bits + rng.normal(0, 0.1, (ROWS, 2))
    rows = [
        (float(a), float(b), Vectors.dense([a, b]), int(left ^ right), 1.0, index % 10 == 0)
        for index, ((a, b), (left, right)) in enumerate(zip(points.tolist(), bits.tolist(), strict=True))
    ]
    kinds = {"a": DoubleType(), "b": DoubleType(), "v": VectorUDT(), "y": IntegerType(), "w": DoubleType()}
    kinds["held"] = BooleanType()
    frame = spark.createDataFrame(rows, StructType([StructField(name, kind) for name, kind in kinds.items()]))
    return frame.repartition(4).cache()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    util.clear_training_cache()
    return LocalStore(str(tmp_path))


def network(inputs: int = 2) -> Any:
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def torch_estimator(store: Store | None, **others: Any) -> Any:
    import torch

    from horovod.spark.torch import TorchEstimator

    model = others.pop("model", None) or network()
    given = {
        "backend": Ranks(),
        "store": store,
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.01),
        "loss": torch.nn.BCEWithLogitsLoss(),
        "feature_cols": ["v"],
        "label_cols": ["y"],
        "batch_size": 50,
        "epochs": 6,
        "random_seed": 1,
        "verbose": 0,
    }
    return TorchEstimator(**{**given, **others})


def accuracy(output: Any, label: Any) -> Any:
    return ((output > 0) == (label > 0.5)).float().mean()


def test_torch_learns_xor_and_the_model_answers_as_the_module_does(
    xor: Any, store: LocalStore, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    estimator = torch_estimator(store, metrics=[accuracy], validation=0.2, verbose=1, run_id="first", epochs=5)
    model = estimator.fit(xor)
    history = model.getHistory()
    assert [entry["epoch"] for entry in history] == list(range(5))
    assert history[-1]["train"]["loss"] < 0.2 < history[0]["train"]["loss"]
    assert history[-1]["validation"]["all_metrics"][0]["group_0_y"] > 0.98
    assert "horovod: epoch 5 of 5: training loss 0." in capfd.readouterr().out
    assert [group["lr"] for group in model.getOptimizer().param_groups] == [0.01]
    # The store.
    root = Path(store.prefix_path.removeprefix("file://"))
    assert sorted(path.name for path in root.iterdir()) == ["intermediate_train_data.0", "intermediate_val_data.0", "runs"]
    assert (root / "runs/first/checkpoint").stat().st_size > 1000
    assert list((root / "runs/first/logs").glob("events*")) and not list(root.rglob("*.part"))
    # transform.
    rows = model.transform(xor).select("v", "y", "y__output").limit(500).collect()
    assert np.mean([(row.y__output > 0) == (row.y > 0) for row in rows]) > 0.98
    with torch.no_grad():
        expected = model.getModel()(torch.tensor(np.array([row.v.toArray() for row in rows]), dtype=torch.float32))
    assert [row.y__output for row in rows] == np.rint(expected.numpy()[:, 0]).astype(int).tolist()


def test_a_run_is_resumed_from_its_checkpoint_and_the_data_is_written_once(
    xor: Any, store: LocalStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = torch_estimator(store, run_id="again", epochs=3, validation="held").fit(xor)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    second = torch_estimator(store, run_id="again", epochs=2, validation="held").fit(xor)
    assert "training starts from the checkpoint of run again in file://" in capfd.readouterr().out
    assert second.getHistory()[0]["train"]["loss"] < first.getHistory()[-1]["train"]["loss"] + 0.02
    assert second.getOptimizer().param_groups[0]["lr"] == pytest.approx(0.01)
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    third = torch_estimator(store, run_id="again", epochs=1, validation="held").fit_on_parquet(dataset_idx=0)
    assert third.getHistory()[0]["validation"]["loss"] < 0.3
