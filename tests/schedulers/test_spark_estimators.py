# SPDX-License-Identifier: Apache-2.0
"""Estimators on a DataFrame: two ranks learn XOR; data, checkpoints, models and errors. One JVM for the file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pages import ROOT, scripts_of
from support.schedulers.spark import session

import horovod
from horovod.spark.common import util
from horovod.spark.common.backend import Backend
from horovod.spark.common.datamodule import DataModule
from horovod.spark.common.store import LocalStore, Store

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
pytest.importorskip("pyspark", reason="not run: pyspark is not installed")

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
    with session("local[2]", tmp_path_factory.mktemp("home"), sql_shuffle_partitions="2") as found:
        yield found


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
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


class Two(torch.nn.Module):
    """A network of two features."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, a: Any, b: Any) -> Any:
        return self.layers(torch.cat([a, b], 1))


def torch_estimator(store: Store | None, **others: Any) -> Any:
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


@pytest.fixture(scope="module")
def trained(xor: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """An estimator that was fitted in Spark's tasks, its model, and the folder of its store."""
    root = tmp_path_factory.mktemp("store")
    given = {"metrics": [accuracy], "validation": 0.2, "run_id": "first", "epochs": 5, "sample_weight_col": "w"}
    estimator = torch_estimator(LocalStore(str(root)), **given, backend=None, num_proc=2)
    return estimator, estimator.fit(xor), root


@pytest.mark.slow("jobs of Spark")
def test_torch_learns_xor_in_sparks_tasks(trained: Any) -> None:
    _, model, root = trained
    history = model.getHistory()
    assert [entry["epoch"] for entry in history] == list(range(5))
    assert history[-1]["train"]["loss"] < 0.2 < history[0]["train"]["loss"]
    assert history[-1]["train"]["all_metrics"][0]["group_0_y"] > 0.98
    assert history[-1]["validation"]["all_metrics"][0]["group_0_y"] > 0.98
    assert [group["lr"] for group in model.getOptimizer().param_groups] == [0.01]
    assert model.getRunId() == "first" and model.getFeatureColumns() == ["v"]
    names = [re.sub(r"\.\d+$", "", path.name) for path in root.iterdir()]  # the number counts a process's data
    assert sorted(names) == ["intermediate_train_data", "intermediate_val_data", "runs"]
    assert (root / "runs/first/checkpoint").stat().st_size > 1000
    lines = (root / "runs/first/logs/history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history
    assert not list(root.rglob("*.part"))


@pytest.mark.slow("jobs of Spark")
def test_transform_gives_what_the_module_answers(xor: Any, trained: Any) -> None:
    _, model, _ = trained
    frame = xor.selectExpr("v", "cast(y as double) as y", "y as label").limit(300)
    model = model.copy().setLabelColumns(["y"])
    model._metadata = None  # the type of a model without a store is that of the DataFrame's label
    rows = model.transform(frame).collect()
    with torch.no_grad():
        expected = model.getModel()(torch.tensor(np.array([row.v.toArray() for row in rows]), dtype=torch.float32))
    assert [row.y__output for row in rows] == expected[:, 0].tolist()
    assert np.mean([(row.y__output > 0) == (row.y > 0) for row in rows]) > 0.98


def test_an_integer_label_makes_integers_and_a_bad_frame_is_an_error(xor: Any, trained: Any) -> None:
    _, model, _ = trained
    frame = model.setOutputCols(["answer"]).transform(xor.limit(100))
    assert frame.schema["answer"].dataType.simpleString() == "int" and frame.columns[:-1] == xor.columns
    assert {row.answer for row in frame.collect()} > {-5, 5} - {-5, 5}
    with pytest.raises(ValueError, match="a column `answer` already"):
        model.transform(frame)
    with pytest.raises(ValueError, match="column `v` is not in the DataFrame"):
        model.transform(xor.drop("v"))
    model.setOutputCols(["y__output"])


def test_an_error_of_a_transform_or_a_fit_names_the_users_line_or_call(spark: Any, xor: Any) -> None:
    from pyspark.errors import PythonException
    from pyspark.sql import functions, types

    from horovod.spark.torch import TorchModel

    class Own(torch.nn.Module):
        def forward(self, v: Any) -> Any:
            if v.sum() > 0:
                raise KeyError("of the script")
            return v[:, 0] / 0

    def answers(df: Any) -> None:
        known = {"y": {"spark_data_type": types.IntegerType, "output_size": 1}}
        TorchModel(model=Own(), feature_columns=["v"], label_columns=["y"], _metadata=known).transform(df).collect()

    with pytest.raises(PythonException) as caught:
        answers(xor.where("a + b > 0.5"))
    line = Own.forward.__code__.co_firstlineno + 2
    assert f'File "{__file__}", line {line}, in forward\n    raise KeyError("of' in str(caught.value)
    text = "ValueError: output y__output, row 0 of the partition: the model's answer is -?(nan|inf), .*int32\nhint: "
    with pytest.raises(PythonException, match=text):
        answers(xor.where("a + b < 0").limit(1))
    fails = functions.udf(lambda number: 1 / 0, "double")
    frame = xor.select(fails("a").alias("a"), "y")
    with pytest.raises(RuntimeError, match="^TorchEstimator.fit: Spark job has failed: ZeroDivisionError: "):
        torch_estimator(None, backend=None, num_proc=1, feature_cols=["a"], model=network(1)).fit(frame)


@pytest.mark.thorough
def test_an_estimator_and_a_model_are_saved_and_resume(
    xor: Any, trained: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from horovod.spark.torch import TorchEstimator, TorchModel

    estimator, model, root = trained
    estimator.write().overwrite().save(str(tmp_path / "estimator"))
    model.save(str(tmp_path / "model"))
    read = TorchModel.load(str(tmp_path / "model"))
    assert read.getHistory() == model.getHistory() and read.uid == model.uid
    assert all((a == b).all() for a, b in zip(read.getModel().parameters(), model.getModel().parameters(), strict=True))
    rows = read.transform(xor.limit(20)).collect()
    assert rows == model.transform(xor.limit(20)).collect()
    with pytest.raises(ValueError, match="holds a horovod.spark.torch.estimator.TorchModel\nhint: load it with"):
        TorchEstimator.load(str(tmp_path / "model"))

    again = TorchEstimator.load(str(tmp_path / "estimator"))
    assert again.getStore() is None and again.getBackend() is None
    assert again.getBatchSize() == 50 and again.getMetrics()[0].__name__ == "accuracy"
    again.setStore(estimator.getStore()).setNumProc(1).setEpochs(1).setVerbose(1)
    written = {path: path.stat().st_mtime_ns for path in root.rglob("*.parquet")}
    more = again.fit(xor)
    out = capfd.readouterr().out
    assert "horovod: the data is in file://" in out and "from the checkpoint of run first in file://" in out
    assert "horovod: epoch 1 of 1: training loss 0." in out and "validation loss" in out
    assert written == {path: path.stat().st_mtime_ns for path in root.rglob("*.parquet")}
    assert more.getHistory()[0]["train"]["loss"] < 1.1 * model.getHistory()[-1]["train"]["loss"]
    assert more.getOptimizer().param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.thorough
def test_lightning_learns_xor_in_sparks_tasks_goes_on_and_needs_no_store(
    xor: Any, store: LocalStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="not run: lightning is not installed")
    from horovod.spark.lightning import TorchEstimator, TorchModel

    class Xor(pl.LightningModule):
        """Uses nothing of this file, which the workers of `transform` cannot import."""

        def __init__(self, layers: Any) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, v: Any) -> Any:
            return self.layers(v)

        def training_step(self, batch: Any, index: int) -> Any:
            assert self.trainer.world_size == 2 or self.current_epoch == 6
            return torch.nn.functional.binary_cross_entropy_with_logits(self(batch["v"]), batch["y"].float())

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("right", ((self(batch["v"]) > 0) == (batch["y"] > 0)).float().mean(), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.02)

    given = {"feature_cols": ["v"], "label_cols": ["y"], "label_shapes": [[-1, 1]], "batch_size": 50, "random_seed": 1}
    given |= {"validation": 0.2, "verbose": 0, "num_proc": 2}
    estimator = TorchEstimator(model=Xor(network()), store=store, run_id="l", epochs=6, **given)
    model = estimator.fit(xor)
    last = model.getHistory()[-1]
    assert last["train"]["loss"] < 0.2 < model.getHistory()[0]["train"]["loss"] and last["metrics"]["right"] > 0.98
    rows = model.transform(xor.limit(50)).collect()
    with torch.no_grad():
        expected = model.getModel()(torch.tensor(np.array([row.v.toArray() for row in rows]), dtype=torch.float32))
    assert [row.y__output for row in rows] == expected[:, 0].round().int().tolist()
    model.save(str(tmp_path / "saved"))
    assert TorchModel.load(str(tmp_path / "saved")).transform(xor.limit(50)).collect() == rows
    estimator.save(str(tmp_path / "estimator"))
    again = TorchEstimator.load(str(tmp_path / "estimator")).setStore(store).setNumProc(1).setEpochs(1).setVerbose(1)
    more = again.fit(xor).getHistory()
    out = capfd.readouterr().out
    assert "from the checkpoint of run l in file://" in out and "horovod: epoch 7: training loss 0." in out
    assert [entry["epoch"] for entry in more] == [6] and more[0]["train"]["loss"] < 1.1 * last["train"]["loss"]
    bare = TorchEstimator(model=Xor(network()), epochs=2, **given).fit(xor)
    assert len(bare.getHistory()) == 2 and not (tmp_path / "nothing-is-written-here").exists()


def keras_estimator(store: Store | None, **others: Any) -> Any:
    import keras

    from horovod.spark.keras import KerasEstimator

    keras.utils.set_random_seed(5)
    layers = [keras.Input((2,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1, "sigmoid")]
    given = {
        "backend": Ranks(),
        "store": store,
        "model": keras.Sequential(layers),
        "optimizer": keras.optimizers.Adam(0.01),
        "loss": "binary_crossentropy",
        "metrics": ["accuracy"],
        "feature_cols": ["v"],
        "label_cols": ["y"],
        "batch_size": 50,
        "epochs": 5,
        "verbose": 0,
        "random_seed": 1,
    }
    return KerasEstimator(**{**given, **others})


@pytest.mark.slow("jobs of Spark")
def test_keras_learns_xor_and_its_model_is_saved(
    xor: Any, store: LocalStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from horovod.spark.keras import KerasEstimator, KerasModel

    # With two ranks on the other backends of Keras, and without a store.
    estimator = keras_estimator(store, backend=Ranks(1), validation="held", run_id="k", sample_weight_col="w")
    model = estimator.fit(xor)
    history = model.getHistory()
    assert len(history["loss"]) == 5 and history["loss"][-1] < 0.2 < history["loss"][0]
    assert history["val_accuracy"][-1] > 0.98
    assert float(model.getModel().optimizer.learning_rate.numpy()) == pytest.approx(0.01)
    assert (tmp_path / "runs/k/checkpoint.keras").exists()
    assert len((tmp_path / "runs/k/logs/history.jsonl").read_text().splitlines()) == 5
    frame = xor.selectExpr("v", "cast(y as float) as y").limit(200)
    model.save(str(tmp_path / "saved"))
    read = KerasModel.load(str(tmp_path / "saved"))
    read._metadata = None
    rows = read.transform(frame).collect()
    expected = model.getModel().predict(np.array([row.v.toArray() for row in rows]), verbose=0)
    assert np.allclose([row.y__output for row in rows], expected[:, 0], atol=1e-5)
    estimator.save(str(tmp_path / "estimator"))
    again = KerasEstimator.load(str(tmp_path / "estimator"))
    assert again.getOptimizer().get_config() == estimator.getOptimizer().get_config()
    assert again.getLoss() == "binary_crossentropy" and again.getBackendEnv() == estimator.getBackendEnv()
    assert not capfd.readouterr().out


@pytest.mark.thorough
def test_the_features_are_all_columns_without_another_use(xor: Any, store: LocalStore, tmp_path: Path) -> None:
    frame = xor.selectExpr("a", "b", "double(y) as y", "double(w) as w")
    options = {"feature_cols": None, "input_shapes": [[-1, 1], [-1, 1]], "model": Two(), "sample_weight_col": "w"}
    model = torch_estimator(store, **options, epochs=1).fit(frame)
    assert model.getFeatureColumns() == ["a", "b"] and model.getHistory()[0]["train"]["loss"] < 0.8
    assert model.transform(frame.limit(3)).schema["y__output"].dataType.simpleString() == "double"


@pytest.mark.thorough
def test_without_a_store_the_rows_go_straight_to_the_ranks(xor: Any, tmp_path: Path) -> None:
    given = {"backend": None, "num_proc": 2, "validation": "held", "sample_weight_col": "w", "metrics": [accuracy]}
    with contextlib.chdir(tmp_path):
        model = torch_estimator(None, **given, input_shapes=[[-1, 2]]).fit(xor)
    history = model.getHistory()
    assert history[-1]["train"]["loss"] < 0.2 < history[0]["train"]["loss"]
    assert history[-1]["validation"]["all_metrics"][0]["group_0_y"] > 0.98
    assert model.transform(xor.limit(9)).schema["y__output"].dataType.simpleString() == "int"
    assert not list(tmp_path.iterdir())

    def refused(text: str, df: Any = xor, **others: Any) -> None:
        with pytest.raises(ValueError, match=text):
            torch_estimator(None, **{"backend": None, "num_proc": 2, **others}).fit(df)

    refused("TorchEstimator has no store, and run_id names a run in the store\nhint: store=Store.create", run_id="a")
    refused("has no store, and its backend Ranks has no method run_with_rows\nhint: ", backend=Ranks(), num_proc=None)
    refused("has no store, and its data_module reads files of a store\nhint: ", data_module=DataModule)
    refused("column `v` has 2 values in a row, and its shape .* has 3", input_shapes=[[-1, 3]])
    refused("validation='held' leaves no rows for validation", xor.where("not held"), validation="held")
    with pytest.raises(ValueError, match="has no store, and fit_on_parquet reads what is there\nhint: store=Store"):
        torch_estimator(None).fit_on_parquet()


@pytest.mark.thorough
def test_a_keras_model_is_trained_without_a_store(xor: Any) -> None:
    model = keras_estimator(None, backend=None, num_proc=2, validation=0.2).fit(xor)
    history = model.getHistory()
    assert history["loss"][-1] < 0.2 and history["val_accuracy"][-1] > 0.98


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_keras_model_is_trained_on_another_backend_of_keras(
    xor: Any, store: LocalStore, capfd: pytest.CaptureFixture[str], backend: str
) -> None:
    import keras

    class Tell(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            import keras

            print(f"trained on {keras.backend.backend()}")

    given = {"validation": "held", "callbacks": [Tell()], "backend_env": {"KERAS_BACKEND": backend}}
    history = keras_estimator(store, **given).fit(xor).getHistory()
    assert history["loss"][-1] < 0.2 and history["val_accuracy"][-1] > 0.98
    assert capfd.readouterr().out.count(f"trained on {backend}\n") == 2


def test_a_store_that_spark_cannot_write_is_named(xor: Any) -> None:
    text = 'Spark cannot write to the store: memory://a/.*: No FileSystem for scheme "?memory"?\nhint: Spark\'s own'
    with pytest.raises(OSError, match=text):
        torch_estimator(Store.create("memory://a")).fit(xor)


@pytest.mark.thorough
def test_indices_of_spark_ml_are_classes_for_a_loss_of_classes(xor: Any, store: LocalStore) -> None:
    """They are of type double."""
    layers = [network(), torch.nn.Linear(1, 2)]
    given = {"model": torch.nn.Sequential(*layers), "loss": torch.nn.CrossEntropyLoss(), "backend": Ranks(1)}
    frame = xor.selectExpr("v", "double(y) y", "y + 0.5D odd")
    assert torch_estimator(store, **given, epochs=1).fit(frame).getHistory()[0]["train"]["loss"] < 0.8
    given["model"] = torch.nn.Sequential(*layers)
    with pytest.raises(ValueError, match="the label column has fractions, but the loss takes indices of classes"):
        torch_estimator(store, **given, epochs=1, label_cols=["odd"]).fit(frame)


def test_a_frame_that_no_rank_can_read_is_refused_before_spark_runs(spark: Any, xor: Any, store: LocalStore) -> None:
    def refused(text: str, df: Any = xor, **others: Any) -> None:
        with pytest.raises(ValueError, match=text):
            torch_estimator(store, **others).fit(df)

    refused(r"column `z` is not in the DataFrame\nhint: it has `a`, `b`, `v`", feature_cols=["z"])
    refused("column `m` is map<string,int>: no rank can", xor.selectExpr("map('a', 1) as m", "y"), feature_cols=["m"])
    refused("the validation column `z` is not in the DataFrame", validation="z")
    refused("the validation column `v` is vector: expected bool or a number", validation="v")
    refused("the DataFrame has no rows for training", xor.where("a > 100"))
    refused("validation='held' leaves no rows for validation", xor.where("not held"), validation="held")
    refused("the data has 3 training rows for 4 ranks\nhint: num_proc=3", xor.limit(3), backend=Ranks(4))
    words = xor.selectExpr("string(a) as t", "v", "y", "date'2026-01-01' as d")
    text = "column `{}` has the type {}, and a model takes numbers\nhint: Spark's StringIndexer"
    refused(text.format("t", "string"), words, feature_cols=["t"])
    refused(text.format("d", "date"), words, label_cols=["d"])
    with pytest.raises(ValueError, match="column `t` has the type string"):
        keras_estimator(store).setFeatureCols(["t"]).fit(words)
    with pytest.raises(ValueError, match="partitions_per_process is 0"):
        util.prepare_data(2, store, xor, ["y"], ["v"], partitions_per_process=0).__enter__()


@pytest.mark.thorough
def test_columns_of_all_kinds_arrive_and_errors_of_data_name_the_row(spark: Any, store: LocalStore) -> None:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.linalg import SparseVector
    from pyspark.sql import functions as F

    to_vector = F.udf(lambda i: SparseVector(3, {int(i) % 3: 1.0}), vector_type())
    frame = spark.range(0, 300, 1, 3).select(
        to_vector("id").alias("s"), (F.col("id") % 3).alias("y"), F.array(F.lit(1), F.lit(2)).alias("l")
    )
    model = torch_estimator(
        store, feature_cols=["s"], model=network(3), loss=torch.nn.MSELoss(), backend=Ranks(1), epochs=1
    ).fit(frame)
    assert model.getHistory()[0]["train"]["loss"] > 0 and model.transform(frame).count() == 300
    a = torch_estimator(
        store, backend=Ranks(1), epochs=1, feature_cols=["x"], model=network(2), loss=torch.nn.MSELoss()
    )
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["y", "id"], outputCol="x"), a])
    fitted = pipeline.fit(spark.range(100).selectExpr("id", "double(id % 2) as y"))
    fitted.write().overwrite().save(f"{store.prefix_path}/pipeline")
    read = PipelineModel.load(f"{store.prefix_path}/pipeline")
    assert read.transform(spark.range(5).selectExpr("id", "double(id) as y")).count() == 5
    ragged = frame.withColumn("l", F.when(F.col("y") == 2, F.array(F.lit(1))).otherwise(F.col("l")))
    for wrong, text in (
        (ragged, "column `l`, .*parquet, row [0-9]+: a list of . values"),
        (frame.withColumn("l", F.when(F.col("y") == 2, F.col("l"))), "column `l`, .*parquet, row .: the value is null"),
    ):
        with pytest.raises(ValueError, match=text):
            torch_estimator(store, feature_cols=["l"], backend=Ranks(1), epochs=1).fit(wrong)


def vector_type() -> Any:
    from pyspark.ml.linalg import VectorUDT

    return VectorUDT()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 1])
def test_a_script_of_the_page_prints_what_it_shows(tmp_path: Path, number: int) -> None:
    script = scripts_of(ROOT / "docs/spark-estimators.md")[number]
    (tmp_path / script.file).write_text(script.code)
    env = {
        "HOME": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, script.file], cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = re.sub(r"0\.\d+", "0.0", done.stdout).splitlines()
    assert [line for line in found if line in [re.sub(r"0\.\d+", "0.0", line) for line in script.printed]] == [
        re.sub(r"0\.\d+", "0.0", line) for line in script.printed
    ]
