# SPDX-License-Identifier: Apache-2.0
"""The parts of estimators that need no JVM: parameters, stores, prepared data, types, and the data loaders."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import pickle
import pkgutil
import runpy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pages import ROOT

from horovod.data import ParquetReader
from horovod.spark.common import dataset, training, util
from horovod.spark.common.backend import Backend
from horovod.spark.common.cache import TrainingDataCache
from horovod.spark.common.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store
from horovod.spark.data_loaders import pytorch_data_loaders as loaders

pytest.importorskip("pyspark", reason="not run: pyspark is not installed")
pa = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="not run: pyarrow is not installed")

DEFAULTS: dict[str, Any] = {
    "num_proc": None,
    "model": None,
    "backend": None,
    "store": None,
    "optimizer": None,
    "loss": None,
    "loss_weights": None,
    "sample_weight_col": None,
    "metrics": [],
    "feature_cols": None,
    "label_cols": None,
    "continuous_cols": None,
    "categorical_cols": None,
    "validation": None,
    "gradient_compression": None,
    "compress_sparse_cols": False,
    "batch_size": 32,
    "val_batch_size": None,
    "epochs": 1,
    "verbose": 1,
    "callbacks": [],
    "random_seed": None,
    "shuffle_buffer_size": None,
    "shuffle": True,
    "partitions_per_process": 10,
    "run_id": None,
    "train_steps_per_epoch": None,
    "validation_steps_per_epoch": None,
    "transformation_fn": None,
    "transformation_edit_fields": None,
    "transformation_removed_fields": None,
    "train_reader_num_workers": 2,
    "val_reader_num_workers": 2,
    "reader_pool_type": "thread",
    "label_shapes": None,
    "inmemory_cache_all": False,
    "use_gpu": True,
    "mp_start_method": None,
    "backward_passes_per_step": 1,
    "tensorflow_dataset_prefetch_buffer_size": 0,
}
OF_TORCH = {"data_module": None, "input_shapes": None, "loss_constructors": None, "train_minibatch_fn": None}
OF_KERAS = {
    "data_module": None,
    "custom_objects": {},
    "checkpoint_callback": None,
    "backend_env": {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"},
}
OF_MODELS = {"history": None, "model": None, "feature_columns": None, "label_columns": None, "run_id": None}
OF_TORCH_MODELS = {"optimizer": None, "input_shapes": None, "loss": None, "loss_constructors": None}
UNUSUAL = {
    "shuffle_buffer_size": "ShufflingBufferSize",
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
    "inmemory_cache_all": "InMemoryCacheAll",
}


def title(name: str) -> str:
    return UNUSUAL.get(name) or "".join(part.capitalize() for part in name.split("_"))


CLASSES: dict[str, dict[str, Any]] = {
    "horovod.spark.common.params.EstimatorParams": DEFAULTS,
    "horovod.spark.torch.TorchEstimator": DEFAULTS | OF_TORCH,
    "horovod.spark.keras.KerasEstimator": DEFAULTS | OF_KERAS,
    "horovod.spark.common.params.ModelParams": OF_MODELS,
    "horovod.spark.torch.TorchModel": OF_MODELS | OF_TORCH_MODELS,
    "horovod.spark.keras.KerasModel": OF_MODELS | {"custom_objects": {}},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if "keras" in name else []) for name in CLASSES]
)
def test_every_parameter_has_horovods_name_default_setter_and_getter(name: str) -> None:
    cls, defaults = pkgutil.resolve_name(name), CLASSES[name]
    made, other = cls(), cls()
    assert {param.name for param in made.params} - {"outputCols"} == set(defaults)
    for param, default in defaults.items():
        getter = f"get{title(param)}"
        setter = "setLabelColoumns" if param == "label_columns" else f"set{title(param)}"
        assert getattr(made, getter)() == default, param
        kind = made.getParam(param).typeConverter.__name__
        value: Any = {"toInt": 7, "toBoolean": True, "toString": "a", "toListString": ["a"]}.get(kind, [1.0])
        if param == "shuffle_buffer_size":
            with pytest.warns(DeprecationWarning, match="shuffle_buffer_size is deprecated"):
                assert made.setShufflingBufferSize(7) is made
        else:
            assert getattr(made, setter)(value) is made
        assert getattr(made, getter)() == value, param
        assert getattr(other, getter)() == default, "a default belongs to one object"
    with pytest.raises(TypeError):
        made.setParams(7)
    with pytest.raises(TypeError, match="has no parameter 'colour'"):
        made.setParams(colour=1)
    assert other.setParams(run_id="x") is other and other.getRunId() == "x"


OF_PYSPARK = ["torch", "torch.util", "common.params", "common.estimator", "common.serialization"]


@pytest.mark.parametrize("name", [*OF_PYSPARK, pytest.param("keras", marks=pytest.mark.thorough)])
def test_a_module_has_horovods_names_parameters_and_defaults(name: str) -> None:
    module = f"horovod.spark.{name}"
    found = runpy.run_path(str(ROOT / "tests/unit/core/test_surface.py"))
    owner = pkgutil.resolve_name(module)
    entries = found["SURFACE"][module].items()
    assert [text for name, entry in entries for text in found["compared"](module, name, owner, entry)] == []


def test_parameters_are_keywords_and_none_keeps_the_default() -> None:
    from horovod.spark.torch import TorchEstimator, TorchModel

    with pytest.raises(TypeError):
        TorchEstimator(2)
    made = TorchEstimator(batch_size=None, epochs=3, shuffle=False)
    assert (made.getBatchSize(), made.getEpochs(), made.getShuffle()) == (32, 3, False)
    with pytest.raises(TypeError, match="Could not convert"):
        TorchEstimator(batch_size="many")
    keywords = inspect.signature(TorchEstimator.__init__).parameters
    assert {"verbose": 1, "shuffle": True, "reader_pool_type": "thread", "backward_passes_per_step": 1}.items() <= {
        name: item.default for name, item in keywords.items()
    }.items()
    model = TorchModel(label_columns=["y", "z"], _metadata={"y": 1})
    assert model.getOutputCols() == ["y__output", "z__output"] and model._metadata == {"y": 1}
    assert model.setLabelColumns(["a"]).getOutputCols() == ["a__output"]
    assert model.setOutputCols(["b"]).setLabelColoumns(["c"]).getOutputCols() == ["b"]


def refused(**others: Any) -> str:
    import torch

    from horovod.spark.torch import TorchEstimator

    model = torch.nn.Linear(1, 1)
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "loss": torch.nn.MSELoss()}
    estimator = TorchEstimator(**{**given, "label_cols": ["y"], **others})
    with pytest.raises(ValueError) as raised:
        estimator.fit_on_parquet()
    return str(raised.value)


def test_what_cannot_work_is_refused_before_anything_is_written() -> None:
    import torch

    assert refused(model=None) == "Model parameter is required"
    assert "label_cols is required" in refused(label_cols=None)
    assert "both backend and num_proc" in refused(backend=Backend(), num_proc=2)
    assert refused(optimizer=None) == "Optimizer parameter is required"
    assert "loss is required" in refused(loss=None)
    assert "both loss and loss_constructors" in refused(loss_constructors=[torch.nn.MSELoss])
    assert refused(loss=[torch.nn.MSELoss()] * 3) == "loss has 3 entries: expected one"
    assert "loss is 'bce': expected a function" in refused(loss="bce")
    assert "a metric is 'accuracy': expected a function" in refused(metrics=["accuracy"])
    assert "expected an optimizer of the model's parameters\nhint: " in refused(optimizer=torch.optim.SGD)
    assert "model is a str: expected a torch.nn.Module" in refused(model="net")
    assert "store is '/data': expected a Store\nhint: store=Store.create" in refused(store="/data")
    assert "num_proc is 0: expected at least 1" in refused(num_proc=0)
    assert "2 loss weights for 1 label column" in refused(loss_weights=[1.0, 2.0])
    assert "a group of 2 metrics: expected 1 or 1" in refused(metrics=[[max, min]])
    assert "2 input shapes for 1 feature column" in refused(input_shapes=[[1], [1]], feature_cols=["x"])
    assert "backward_passes_per_step is 0: expected at least 1" in refused(backward_passes_per_step=0)
    assert "batch_size is -1: expected at least 1" in refused(batch_size=-1)
    assert "parameters that are not the model's\nhint" in refused(model=torch.nn.Linear(1, 1))
    assert "validation is 1.0: expected a fraction in [0, 1)" in refused(validation=1.0)
    assert "validation is True: expected a fraction or" in refused(validation=True)
    assert "TorchEstimator has no store, and fit_on_parquet reads what is there\nhint: store=Store.create" in refused(
        backend=Backend()
    )


def test_a_store_is_chosen_by_its_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    assert type(Store.create("hdfs://host:9000/data")) is HDFSStore
    for path in (str(tmp_path), f"file://{tmp_path}", "memory://x", "/dbfs/x"):
        assert type(Store.create(path)) is FilesystemStore
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15")
    assert util.is_databricks()
    for path in ("dbfs:/x", "/dbfs/x", "file:/dbfs/x", "file:///dbfs/x"):
        store = Store.create(path)
        assert type(store) is DBFSLocalStore
        assert store.get_run_path("r") == "file:///dbfs/x/runs/r" and store.get_checkpoint_filename() == "checkpoint.tf"
        assert store.get_localized_path(path) == "/dbfs/x"
    with pytest.raises(ValueError, match="/tmp/x is not a path of DBFS"):
        DBFSLocalStore("/tmp/x")


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_the_layout_of_a_store(scheme: str, tmp_path: Path) -> None:
    prefix = f"{scheme or 'file://'}{tmp_path}"
    store = Store.create(f"{scheme}{tmp_path}")
    assert isinstance(pickle.loads(pickle.dumps(store)), FilesystemStore)
    assert store.get_train_data_path() == f"{prefix}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"{prefix}/intermediate_val_data.3"
    assert store.get_test_data_path(0) == f"{prefix}/intermediate_test_data.0"
    assert store.get_runs_path() == f"{prefix}/runs" and store.get_run_path("r") == f"{prefix}/runs/r"
    assert store.get_checkpoint_path("r") == f"{prefix}/runs/r" and store.get_logs_path("r") == f"{prefix}/runs/r/logs"
    assert store.get_checkpoint_filename() == "checkpoint" and store.get_logs_subdir() == "logs" and store.saving_runs()
    assert store.get_data_metadata_path("a/") == "a/_horovod.json"
    store.write_text(f"{prefix}/new/a.txt", "text")
    assert store.read(f"{prefix}/new/a.txt") == b"text" and store.exists(f"{prefix}/new")
    assert not store.exists(f"{prefix}/old") and not store.is_parquet_dataset(f"{prefix}/new")
    remote = pickle.loads(pickle.dumps(store.to_remote("r", 2)))
    assert remote.train_data_path == f"{prefix}/intermediate_train_data.2" and remote.run_path == f"{prefix}/runs/r"
    assert (remote.checkpoint_filename, remote.logs_subdir, remote.saving_runs) == ("checkpoint", "logs", True)
    with remote.get_local_output_dir() as folder:
        (Path(folder) / "logs").mkdir()
        (Path(folder) / "logs/a").write_text("1")
        (Path(folder) / "b.ckpt").write_text("2")
        remote.sync(folder)
        (Path(folder) / "b.ckpt").write_text("33")
        remote.sync(folder)
    assert not Path(folder).exists()
    assert store.read(f"{prefix}/runs/r/b.ckpt") == b"33" and store.read(f"{prefix}/runs/r/logs/a") == b"1"
    assert [name.rpartition("/")[2] for name in store.get_checkpoints("r")] == ["b.ckpt"]
    store.fs.rm(store.get_localized_path(prefix), recursive=True)


def test_given_paths_take_the_place_of_those_of_the_prefix(tmp_path: Path) -> None:
    store = LocalStore(
        str(tmp_path), train_path="/a", runs_path="memory://runs", save_runs=False, checkpoint_filename="c"
    )
    assert store.get_train_data_path(1) == "file:///a.1" and store.get_run_path("r") == "memory://runs/r"
    assert store.get_checkpoint_path("r") is None and store.get_logs_path("r") is None
    assert store.get_checkpoint_filename() == "c" and not store.to_remote("r", None).saving_runs
    assert LocalStore("relative/x").get_runs_path() == f"file://{Path.cwd()}/relative/x/runs"


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        (
            "{folder}/file/store",
            OSError,
            "file://{folder}/file/store cannot be written and read: NotADirectoryError: .*\nhint",
        ),
        ("s3:/bucket/a", ValueError, "'s3:/bucket/a' looks like a URL, but has no //.*\nhint: write s3://bucket"),
        ("dbfs:/a", ValueError, "the store 'dbfs:/a' looks like a URL.*\nhint: .*dbfs:/ works on Databricks only"),
        ("s3://bucket/a", ImportError, "s3://bucket/a cannot be opened: .*s3fs.*\nhint: install that package in the"),
        ("nowhere://a", OSError, "nowhere://a cannot be opened: Protocol not known: nowhere\nhint: check the URL"),
        ("hdfs://nowhere:1/a", OSError, "hdfs://nowhere:1/a cannot be opened: .*\nhint: .*needs libhdfs"),
    ],
)
def test_a_store_without_access_names_the_path_and_the_reason(
    tmp_path: Path, path: str, kind: type[Exception], text: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(kind, match=text.format(folder=tmp_path)):
        Store.create(path.format(folder=tmp_path)).check_access()


def test_a_folder_that_this_user_may_not_use_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(folder)
        data = Path(folder) / "intermediate_train_data"
        data.mkdir()
        store.check_access()
        assert not store.is_parquet_dataset(str(data)) and not [
            path for path in data.parent.rglob("*") if path.is_file()
        ]
        data.chmod(0)
        data.parent.chmod(0o555)
        user = os.geteuid()
        if user == 0:  # who may read anything
            os.seteuid(65534)
        try:
            with pytest.raises(
                OSError, match=f"{folder} cannot be written and read: PermissionError: .*\nhint: choose"
            ):
                store.check_access()
            with pytest.raises(OSError, match=f"{data} cannot be listed: PermissionError: .*\nhint: let the user"):
                util.get_simple_meta_from_parquet(store, ["y"], ["x"])
        finally:
            os.seteuid(user)
            data.parent.chmod(0o755)


def test_urls_of_hdfs() -> None:
    assert HDFSStore("hdfs://host:9000/a").get_train_data_path(0) == "hdfs://host:9000/a/intermediate_train_data.0"
    assert HDFSStore("hdfs:///a").get_runs_path() == "hdfs:///a/runs"
    assert HDFSStore("/a", host="h", port=1, user="u").storage_options == {"host": "h", "port": 1, "user": "u"}
    assert HDFSStore("/a").get_localized_path("hdfs://host:9000/a/b") == "/a/b"
    with pytest.raises(ValueError, match="s3://b/a begins with s3://: expected hdfs://"):
        HDFSStore("s3://b/a")
    with pytest.raises(ValueError, match="hdfs://host:9000 has no path: expected hdfs://host:port/path"):
        HDFSStore("hdfs://host:9000")
    with pytest.raises(ValueError, match="expected 'libhdfs'"):
        HDFSStore("/a", driver="libhdfs3")


def test_a_failed_upload_is_tried_again_and_kept_for_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    store = LocalStore(str(tmp_path / "store"))
    (tmp_path / "store").write_text("a file where the folder should be")
    (tmp_path / "local").mkdir()
    saver = training.Saver(store.to_remote("r", 0), str(tmp_path / "local"))
    Path(saver.checkpoint).write_text("weights")
    saver.upload()
    assert "runs/r/checkpoint was not written in 3 tries" in saver.failure
    assert capsys.readouterr().out == f"horovod: {saver.failure}; the training goes on\n"
    (tmp_path / "store").unlink()
    saver.upload()
    assert saver.failure == "" and store.read(f"{store.get_run_path('r')}/checkpoint") == b"weights"


@pytest.fixture
def prepared(tmp_path: Path) -> LocalStore:
    """A store with training and validation data that another program has written."""
    store = LocalStore(str(tmp_path))
    for which, rows in (("train", 100), ("val", 10)):
        folder = tmp_path / f"intermediate_{which}_data.0"
        folder.mkdir()
        columns = {"x": [[float(i), 1.0] for i in range(rows)], "y": np.arange(rows, dtype=np.int32)}
        pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=30)
    return store


def test_what_the_driver_knows_of_data_in_the_store(prepared: LocalStore, tmp_path: Path) -> None:
    from pyspark.sql.types import ArrayType, IntegerType

    train_rows, val_rows, metadata, row_bytes = util.get_simple_meta_from_parquet(prepared, ["y"], ["x"], None, 0)
    assert (train_rows, val_rows) == (100, 10) and 4 < row_bytes < 60
    assert metadata["y"]["spark_data_type"] is IntegerType and metadata["y"]["shape"] == 1
    assert metadata["x"]["spark_data_type"] is ArrayType and metadata["x"]["shape"] == 2
    assert set(metadata["x"]) == {
        "spark_data_type",
        "is_sparse_vector_only",
        "shape",
        "intermediate_format",
        "max_size",
    }
    with pytest.raises(ValueError, match=r"has no column `z`\nhint: it has `x`, `y`"):
        util.get_simple_meta_from_parquet(prepared, ["z"], ["x"], None, 0)
    with pytest.raises(ValueError, match="there are no Parquet files in file://.*data.7"):
        util.get_simple_meta_from_parquet(prepared, ["y"], ["x"], None, 7)


def test_a_manifest_that_does_not_fit_its_data_is_an_error(prepared: LocalStore, tmp_path: Path) -> None:
    path = prepared.get_train_data_path(0)
    folder = tmp_path / "intermediate_train_data.0"
    (folder / "_temporary").mkdir()
    with pytest.raises(
        ValueError, match=r"data.0 is half-written: it has no _horovod.json\nhint: clear_training_cache"
    ):
        dataset.plan_of(prepared, path)
    (folder / "_temporary").rmdir()
    found, content = dataset.plan_of(prepared, path)
    assert content == {}
    written = {"version": 1, "plan": json.loads(found.to_json()), "spark_types": {}, "shapes": {"x": [2], "y": []}}
    prepared.write_text(f"{path}/_horovod.json", json.dumps(written))
    assert dataset.plan_of(prepared, path) == (found, written)
    for broken, text in (
        ("{", "Expecting"),
        ('{"version": 1}', "plan"),
        (json.dumps({**written, "version": 9}), "version 9"),
    ):
        prepared.write_text(f"{path}/_horovod.json", broken)
        with pytest.raises(ValueError, match=rf"_horovod.json cannot be read: .*{text}.*\nhint: clear_training_cache"):
            dataset.plan_of(prepared, path)
    prepared.write_text(f"{path}/_horovod.json", json.dumps(written))
    (folder / "part-0.parquet").unlink()
    with pytest.raises(ValueError, match=r"1 file of .*_horovod.json is missing: .*part-0.parquet\nhint"):
        dataset.plan_of(prepared, path)


class Frame:
    def __init__(self, number: int) -> None:
        self.number = number

    def semanticHash(self) -> int:
        return self.number

    def inputFiles(self) -> list[str]:
        return [f"{self.number}.csv"]


def test_an_index_in_use_is_not_given_to_another_frame(prepared: LocalStore) -> None:
    cache = TrainingDataCache()
    keys = [cache.create_key(Frame(number), prepared, 0.1) for number in range(3)]
    assert len(set(keys)) == 3 and cache.create_key(Frame(0), prepared, 0.2) not in keys
    assert keys[0] == cache.create_key(Frame(0), prepared, 0.1)
    assert [cache.next_dataset_index(key) for key in (keys[0], keys[1], keys[0])] == [0, 1, 0]
    cache.set_dataset_properties(0, "rows")
    assert cache.get_dataset(keys[0]) == 0 and cache.get_dataset(keys[1]) is None
    assert not cache.is_cached(keys[0], prepared)  # its manifest is missing
    prepared.write_text(f"{prepared.get_train_data_path(0)}/_horovod.json", "{}")
    assert cache.is_cached(keys[0], prepared) and not cache.is_cached(keys[2], prepared)
    with cache.use_key(keys[0]):
        cache.clear()
        assert cache.get_dataset_properties(0) == "rows"
        assert cache.next_dataset_index(keys[2]) == 1
    cache.clear()
    assert cache.next_dataset_index(keys[2]) == 0


def test_shapes_and_helpers() -> None:
    from pyspark.sql.types import BooleanType, LongType, StructField, StructType

    metadata = {"x": {"shape": 4}, "y": {"shape": 1}, "any": {"shape": None}}
    util.check_shape_compatibility(metadata, ["x", "any"], ["y"], [[-1, 2, 2], [-1, 9]], [[None, 1]], [[-1]])
    with pytest.raises(ValueError, match=r"1 feature column for 2 shapes of the model: `x`"):
        util.check_shape_compatibility(metadata, ["x"], ["y"], [[-1, 4], [-1]])
    with pytest.raises(ValueError, match=r"column `x` has 4 values in a row, and its shape \[-1, 3\] has 3\nhint"):
        util.check_shape_compatibility(metadata, ["x"], ["y"], [[-1, 3]])
    assert util.to_list(3, 2) == [3, 3] and util.to_list([3], 2) == [3, 3] and util.to_list(None, 2) is None
    with pytest.raises(ValueError, match="a list of 3 values: expected one value, or 2"):
        util.to_list([1, 2, 3], 2)
    assert util.host_hash("a") == util.host_hash("a") != util.host_hash("b")
    assert util.data_type_to_numpy(LongType()) is np.int64 and util.data_type_to_str(BooleanType) == "boolean"
    assert util.numpy_type_to_str(np.float32) == "float" and util.spark_scalar_to_python_type(LongType) is int
    assert util.pyarrow_to_spark_data_type(pa.int64()) is LongType
    schema = StructType([StructField("y", LongType())])
    with pytest.raises(ValueError, match="has a column `y` already"):
        util.get_output_cols(schema, ["y"])
    made = util.get_spark_df_output_schema(schema, ["y"], ["o"], {"y": {"spark_data_type": LongType}})
    assert made.simpleString() == "struct<y:bigint,o:bigint>"


def test_a_transformation_gets_a_pandas_frame() -> None:
    def change(frame: Any) -> Any:
        frame["z"] = frame["x"].map(sum)
        return frame

    columns = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([1, 2])}
    made = training.Transformation(change, [("z", np.float32, (1,), False)], ["y"])(columns)
    assert set(made) == {"x", "z"} and made["x"].tolist() == columns["x"].tolist()
    assert made["z"].dtype == np.float32 and made["z"].tolist() == [[3.0], [7.0]]


def test_ranks_with_different_devices_are_an_error() -> None:
    training.same_device(["cpu", "cpu"])
    with pytest.raises(RuntimeError, match="All ranks don't have same device type! rank 0: cpu, rank 1: gpu\nhint"):
        training.same_device(["cpu", "gpu"])


def test_horovods_pytorch_loaders(prepared: LocalStore) -> None:
    path = prepared.get_train_data_path(0)

    def rows(loader: Any) -> list[list[int]]:
        return [batch["y"].tolist() for batch in loader]

    ordered = [list(range(start, min(start + 40, 100))) for start in (0, 40, 80)]
    for cls in (loaders.PytorchDataLoader, loaders.PytorchAsyncDataLoader):
        loader = cls(reader=ParquetReader(path), batch_size=40, shuffling_queue_capacity=0)
        assert len(loader) == 3 and rows(loader) == rows(loader) == ordered
        getattr(loader, "close_async_loader", int)()
    shuffled = loaders.PytorchDataLoader(ParquetReader(path), 40, 100, limit_step_per_epoch=2)
    assert len(shuffled) == 2 and [len(batch) for batch in rows(shuffled)] == [40, 40]
    assert rows(shuffled) != ordered[:2]
    for cls in (loaders.PytorchInfiniteDataLoader, loaders.PytorchInfiniteAsyncDataLoader):
        loader = cls(reader=ParquetReader(path), batch_size=40, shuffling_queue_capacity=0, limit_step_per_epoch=2)
        assert [rows(loader), rows(loader)] == [ordered[:2], [ordered[2], ordered[0]]]
        getattr(loader, "close_async_loader", int)()
        loader.reader.close()
    for cls in (loaders.PytorchInmemDataLoader, loaders.PytorchInmemAsyncDataLoader):
        loader = cls(reader=ParquetReader(path, shuffle=False), batch_size=40, num_epochs=2, limit_step_per_epoch=4)
        assert len(loader) == 4 and rows(loader) == rows(loader) == [*ordered, ordered[0]]
        with pytest.raises(RuntimeError, match="2 epochs were read"):
            rows(loader)
        getattr(loader, "close_async_loader", int)()
    mixed = loaders.PytorchInmemDataLoader(ParquetReader(path), 40, 2, shuffle=True, limit_step_per_epoch=3)
    assert sorted(itertools.chain(*rows(mixed))) == list(range(100))
    with pytest.raises(ValueError, match="limit_step_per_epoch is -1: expected at least 1"):
        loaders.PytorchInmemDataLoader(ParquetReader(path), 40, 2)
