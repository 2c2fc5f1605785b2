# SPDX-License-Identifier: Apache-2.0
"""Errors of estimators and their models name what the user has written: the parameter, the line, the row. No JVM."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from schedulers.test_spark_training import fit_keras, fit_torch, model_of_torch, one_generation, store  # noqa: F401

import horovod.spark
from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.store import LocalStore
from horovod.spark.runner import called

torch = pytest.importorskip("torch", reason="not run: torch is not installed")
pytest.importorskip("pyspark", reason="not run: pyspark is not installed")

LOCK = "cannot pickle '_thread.lock' object"


def own_class() -> Any:
    class Own(torch.nn.Module):
        """It has no module that ranks could import, so its code travels."""

        def forward(self, x: Any) -> Any:
            raise KeyError("of the script")

    return Own


def test_code_that_travels_with_a_model_keeps_its_file_and_line() -> None:
    from horovod.spark.common.serialization import dumps, loads
    from horovod.spark.torch.util import deserialize, serialize

    for copy in (deserialize(serialize(own_class()())), loads(dumps(own_class()()))):
        with pytest.raises(KeyError) as caught:
            copy(1)
        frame = traceback.extract_tb(caught.value.__traceback__)[-1]
        assert (frame.filename, frame.name, frame.line) == (__file__, "forward", 'raise KeyError("of the script")')


def locked() -> Callable[..., Any]:
    lock = threading.Lock()
    return lambda *_: lock.locked()


def with_lock(value: Any) -> Any:
    value.lock = threading.Lock()
    return value


def parameters_of_torch() -> list[tuple[dict[str, Any], str]]:
    model, inner = model_of_torch(3, 1), "in the variable lock of the function around <lambda>"
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.defaults["of"] = threading.Lock()
    parts = torch.nn.Sequential(model_of_torch(3, 3), with_lock(model_of_torch(3, 1)))
    return [
        ({"model": parts}, f"model cannot be pickled: {LOCK} (in the attribute 1 of Sequential, the attribute lock"),
        (
            {"model": model, "optimizer": optimizer},
            f"optimizer cannot be pickled: {LOCK} (in the attribute defaults of SGD, the value of 'of')",
        ),
        ({"loss": locked()}, f"loss cannot be pickled: {LOCK} ({inner})"),
        ({"metrics": [locked()]}, f"metrics cannot be pickled: {LOCK} (in item 0, {inner[3:]})"),
        ({"transformation_fn": locked()}, f"transformation_fn cannot be pickled: {LOCK} ({inner})"),
    ]


@pytest.mark.slow("jobs of Spark")
@pytest.mark.parametrize("number", range(5))
def test_a_parameter_that_cannot_be_pickled_is_named(store: LocalStore, number: int) -> None:  # noqa: F811
    given, text = parameters_of_torch()[number]
    with pytest.raises(TypeError) as caught:
        fit_torch(store, backend=SparkBackend(2, env={}), **given)
    assert str(caught.value).startswith(f"TorchEstimator.fit_on_parquet: {text}")


def test_callbacks_that_no_rank_gets_need_not_be_pickled(store: LocalStore, monkeypatch: Any) -> None:  # noqa: F811
    class Came(Exception):
        pass

    def run(*_: Any, **__: Any) -> None:
        raise Came

    monkeypatch.setattr(SparkBackend, "run", run)
    with pytest.raises(Came), pytest.warns(UserWarning, match="calls no callbacks"):
        fit_torch(store, backend=SparkBackend(2, env={}), callbacks=[threading.Lock()])


@pytest.mark.thorough
def test_a_parameter_of_keras_that_cannot_be_pickled_is_named(store: LocalStore) -> None:  # noqa: F811
    import keras

    class Open(keras.layers.Layer):
        def get_config(self) -> Any:
            raise NotImplementedError("no config")

    def refused(text: str, layer: Any, **given: Any) -> None:
        model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
        others = {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", **given}
        with pytest.raises(TypeError) as caught:
            fit_keras(store, model, backend=SparkBackend(2, env={}), **others)
        assert str(caught.value).startswith(f"KerasEstimator.fit_on_parquet: {text}")

    refused("model cannot be pickled: no config", Open())
    layer, callback = keras.layers.Dense(3), with_lock(keras.callbacks.Callback())
    refused(f"loss cannot be pickled: {LOCK} (in the variable lock", layer, loss=locked())
    refused(f"callbacks cannot be pickled: {LOCK} (in item 0, ", layer, callbacks=[callback])


def test_an_error_of_a_job_names_what_the_user_called(store: LocalStore, monkeypatch: Any) -> None:  # noqa: F811
    """Which is the estimator's method, whether there is a store or not, and run or run_on_dataframe by itself."""
    import horovod.spark.dataframe as dataframe

    names = []
    monkeypatch.setattr("horovod.spark.runner._Job.__init__", lambda _, name, *__: names.append(name))
    monkeypatch.setattr("horovod.spark.runner._Job.run", lambda *_, **__: [])

    def on_rows() -> None:
        dataframe.run_with_rows(lambda *_: None, type("Frame", (), {"columns": []})())  # type: ignore[arg-type,return-value]

    with pytest.raises(IndexError):  # no rank, no result
        fit_torch(store, backend=SparkBackend(2, env={}))
    horovod.spark.run(print)
    on_rows()
    with called("TorchEstimator.fit"):
        on_rows()
    assert names == [
        "TorchEstimator.fit_on_parquet",
        "horovod.spark.run",
        "horovod.spark.run_on_dataframe",
        "TorchEstimator.fit",
    ]


def test_answers_are_rounded_to_integers_and_one_that_is_none_is_an_error_with_its_row() -> None:
    from horovod.spark.common.inference import _column

    def column(values: Any, kind: str, dtype: Any = np.float32) -> list[Any]:
        answers = np.array(values, dtype)
        return _column(answers, len(answers), 1024, "y__output", kind).to_pylist()  # type: ignore[no-any-return]

    assert column([1.6, -0.4], "int32") == [2, 0] and column([0.2, 0.7], "bool") == [False, True]
    assert column([float("nan")], "float64")[0] != 0
    largest = 2**31 - 1
    assert column([largest, -largest - 1], "int32", np.int64) == [largest, -largest - 1]
    for values, kind, dtype in (
        ([1.0, float("nan")], "int32", np.float32),
        ([1.0, float("nan")], "bool", np.float32),
        ([1.0, float("-inf")], "int64", np.float64),
        ([1.0, 2.0**63], "int64", np.float64),
        ([1, largest + 1], "int32", np.int64),
        ([1.0, 127.75], "int8", np.float32),
    ):
        text = f"output y__output, row 1025 of the partition: .* is {values[1]}.*, and .* type {kind}\nhint: look for"
        with pytest.raises(ValueError, match=text.replace("+", r"\+")):
            column(values, kind, dtype)


def test_an_error_of_shapes_says_what_input_shapes_would_do(store: LocalStore) -> None:  # noqa: F811
    from horovod.spark.torch.remote import call_model

    hint = "\nhint: a feature of one number has the shape [rows], unless input_shapes says otherwise: input_shapes={} "

    def error(features: list[str], model: Any, **given: Any) -> str:
        with pytest.raises(RuntimeError) as caught:
            fit_torch(store, feature_cols=features, model=model, **given)
        return str(caught.value)

    assert hint.format("[[-1, 1]]") in error(["a"], model_of_torch(1, 1))
    assert "hint" not in error(["d"], model_of_torch(4, 1))
    assert "hint" not in error(["a"], model_of_torch(2, 1), input_shapes=[[-1, 1]])
    with pytest.raises(RuntimeError) as caught:
        call_model(model_of_torch(1, 1), [np.ones(3, np.float32)], None)
    assert str(caught.value).endswith(hint.format("[[-1, 1]]") + "makes it [rows, 1]")
    assert len(call_model(model_of_torch(1, 1), [np.ones(3, np.float32)], [[-1, 1]])[0]) == 3

    class Fails(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, a: Any) -> Any:
            raise RuntimeError("of the script")

    assert error(["a"], Fails()) == "of the script"
