# SPDX-License-Identifier: Apache-2.0
"""The training loops of estimators, on data that another program has written, in one rank of this process: no JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horovod.core import shutdown
from horovod.spark.common.backend import Backend
from horovod.spark.common.store import LocalStore

pytest.importorskip("pyspark", reason="not run: pyspark is not installed")
pa = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="not run: pyarrow is not installed")

ROWS = 240


class Here(Backend):
    """One rank: this process."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.env: Mapping[str, str] | None = None

    def run(self, fn: Any, args: Sequence[Any] = (), kwargs: Any = None, env: Mapping[str, str] | None = None) -> Any:
        self.env = env
        return [fn(*args, **(kwargs or {}))]

    def num_processes(self) -> int:
        return self.size


@pytest.fixture(autouse=True)
def one_generation() -> Iterator[None]:
    yield
    shutdown()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Rows whose label `y` is 2 a - b; `c` is the class of a row, `d` has three values, `w` is a weight."""
    rng = np.random.default_rng(0)
    for which, rows in (("train", ROWS), ("val", 40)):
        a, b = rng.random((2, rows)).astype(np.float32)
        columns = {
            "a": a.astype(np.float64),
            "b": b,
            "y": 2 * a - b,
            "c": (a > b).astype(np.int64) + (a > b + 0.4),
            "d": pa.FixedSizeListArray.from_arrays(pa.array(np.stack([a, b, a + b], 1).reshape(-1)), 3),
            "w": (a > 0.5).astype(np.float64),
        }
        folder = tmp_path / f"intermediate_{which}_data"
        folder.mkdir()
        pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=50)
    return LocalStore(str(tmp_path))


def model_of_torch(*sizes: int) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(n, m) for n, m in zip(sizes, sizes[1:], strict=False)))


def fit_torch(store: LocalStore, **others: Any) -> Any:
    import torch

    from horovod.spark.torch import TorchEstimator

    model = others.pop("model", None) or model_of_torch(3, 1)
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": torch.nn.MSELoss(),
        "backend": Here(),
        "store": store,
        "feature_cols": ["d"],
        "label_cols": ["y"],
        "epochs": 2,
        "verbose": 0,
        "random_seed": 0,
    }
    more = others.pop("more", {})
    return TorchEstimator(**{**given, **others}).setParams(**more).fit_on_parquet()


def losses(model: Any, which: str = "train") -> list[float]:
    return [entry[which]["loss"] for entry in model.getHistory()]


def test_a_label_of_the_shape_of_the_output_is_compared_by_value_and_a_class_stays_an_integer(
    store: LocalStore,
) -> None:
    import torch

    seen = []

    def loss(output: Any, label: Any) -> Any:
        seen.append((tuple(output.shape), tuple(label.shape), label.dtype))
        return torch.nn.functional.cross_entropy(output, label)

    model = fit_torch(store, model=model_of_torch(3, 3), loss=loss, label_cols=["c"], batch_size=80, validation=0.1)
    assert set(seen) == {((80, 3), (80,), torch.int64), ((40, 3), (40,), torch.int64)}
    assert losses(model)[1] < losses(model)[0] and 0.5 < losses(model, "validation")[1] < 1.2
    assert model._metadata["c"]["output_size"] == 3

    def by_value(output: Any, label: Any) -> Any:
        assert output.shape == label.shape == (80, 1) and label.dtype == torch.float32
        return (output - label).square().mean()

    fit_torch(store, loss=by_value, label_cols=["c"], batch_size=80)


def test_several_features_and_labels_with_shapes_weights_of_losses_and_metrics(store: LocalStore) -> None:
    import torch

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(1, 1), torch.nn.Linear(3, 3)

        def forward(self, a: Any, d: Any) -> Any:
            assert a.shape[1:] == (1,) and d.shape[1:] == (3, 1)
            return self.first(a), self.second(d[..., 0])

    def error(output: Any, label: Any) -> Any:
        return (output - label).abs().mean()

    model = fit_torch(
        store,
        model=Two(),
        feature_cols=["a", "d"],
        input_shapes=[[-1, 1], [-1, 3, 1]],
        label_cols=["y", "c"],
        loss_constructors=[torch.nn.MSELoss, torch.nn.CrossEntropyLoss],
        loss=None,
        loss_weights=[1.0, 0.0],
        metrics=[[error, lambda output, label: 7.0]],
        validation=0.1,
    )
    entry = model.getHistory()[-1]
    (group,) = entry["train"]["all_metrics"]
    assert set(group) == {"group_0_y", "group_0_c"} and group["group_0_c"] == 7
    assert entry["validation"]["all_metrics"][0]["group_0_c"] == 7
    assert entry["train"]["all_metrics"][0]["group_0_y"] < 1 and 0 < entry["validation"]["loss"] < 1


def test_sample_weights_and_a_loss_that_cannot_have_them(store: LocalStore) -> None:
    import torch

    weighted = fit_torch(store, sample_weight_col="w", train_steps_per_epoch=1, epochs=1, batch_size=ROWS)
    frame = pq.read_table(store.get_localized_path(store.get_train_data_path()))
    d = torch.tensor(np.array(frame["d"].to_pylist(), np.float32))
    y, w = (torch.tensor(frame[name].to_numpy().astype(np.float32).copy()) for name in ("y", "w"))
    with torch.no_grad():
        expected = ((model_of_torch(3, 1)(d)[:, 0] - y).square() * w).mean()
    assert losses(weighted) == pytest.approx([float(expected)], rel=1e-4)
    with pytest.raises(ValueError, match="sample_weight_col needs losses of single rows, and the loss has no `reduc"):
        fit_torch(store, sample_weight_col="w", loss=lambda output, label: (output - label).square().mean())


def test_passes_of_backward_a_function_for_a_batch_and_a_compressor(store: LocalStore) -> None:
    import horovod.torch as hvd

    calls = []

    def minibatch(model: Any, optimizer: Any, fitted: Any, loss_fn: Any, *rest: Any) -> Any:
        inputs, labels, weights, passes, index = rest
        calls.append((passes, index, weights))
        outputs, labels = fitted(model(*inputs), labels)
        loss = loss_fn(outputs, labels, weights)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return outputs, loss

    fit_torch(store, train_minibatch_fn=minibatch, batch_size=100, epochs=1)
    assert calls == [(1, 0, None), (1, 1, None)]
    model = fit_torch(store, backward_passes_per_step=2, batch_size=24, gradient_compression=hvd.Compression.fp16)
    assert losses(model)[1] < losses(model)[0]
    odd = fit_torch(store, backward_passes_per_step=3, batch_size=60, epochs=3)
    assert losses(odd)[2] < losses(odd)[0]


def test_steps_a_transformation_a_cache_and_runs_that_are_not_saved(store: LocalStore, tmp_path: Path) -> None:
    def change(frame: Any) -> Any:
        frame["d"] = frame["d"].map(lambda values: values[:2] * 2)
        return frame

    edited = {
        "transformation_edit_fields": [("d", np.float32, (2,), False)],
        "transformation_removed_fields": ["w"],
    }
    with pytest.raises(ValueError, match="has no column `both`"):
        fit_torch(store, feature_cols=["both"])
    plain = LocalStore(str(tmp_path), save_runs=False)
    model = fit_torch(
        plain,
        transformation_fn=change,
        more=edited,
        model=model_of_torch(2, 1),
        input_shapes=[[-1, 2]],
        inmemory_cache_all=True,
        train_steps_per_epoch=3,
    )
    assert losses(model)[1] < losses(model)[0] and not (tmp_path / "runs").exists()
    assert not list(Path("/dev/shm").glob("horovod-data-*"))


def test_too_few_rows_and_a_model_that_does_not_fit_are_errors(store: LocalStore) -> None:
    with pytest.raises(ValueError, match="the data has 240 training rows for 241 ranks\nhint: num_proc=240"):
        fit_torch(store, backend=Here(241))
    with pytest.raises(ValueError, match="the data has 40 validation rows for 41 ranks\nhint: num_proc=40"):
        fit_torch(store, backend=Here(41), validation=0.1)
    with pytest.raises(ValueError, match=r"column `d` has 3 values in a row, and its shape \[-1, 4\] has 4"):
        fit_torch(store, input_shapes=[[-1, 4]])
    with pytest.raises(ValueError, match="the model has 1 output, and there are 2 label columns: `y`, `c`"):
        fit_torch(store, label_cols=["y", "c"])


def test_an_upload_that_fails_is_an_error_at_the_end(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(RuntimeError, match=r"training has ended, but its last checkpoint could not be saved: .*\nhint"):
        fit_torch(store, epochs=1)


def test_default_run_ids_differ(store: LocalStore) -> None:
    runs = {fit_torch(store, epochs=1).getRunId() for _ in range(3)}
    assert len(runs) == 3 and all(run.startswith("pytorch_") for run in runs)


def test_parameters_for_one_fit(store: LocalStore) -> None:
    import torch

    from horovod.spark.torch import TorchEstimator

    model = model_of_torch(3, 1)
    estimator = TorchEstimator(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), label_cols=["y"])
    estimator.setLoss(torch.nn.MSELoss()).setBackend(Here()).setStore(store).setFeatureCols(["d"]).setVerbose(0)
    found = estimator.fit_on_parquet([{estimator.epochs: 2}, {estimator.run_id: "two"}])
    assert [len(each.getHistory()) for each in found] == [2, 1] and found[1].getRunId() == "two"
    assert estimator.getEpochs() == 1


def fit_keras(store: LocalStore, model: Any, **others: Any) -> Any:
    from horovod.spark.keras import KerasEstimator

    given = {"backend": Here(), "store": store, "feature_cols": ["d"], "label_cols": ["y"], "epochs": 2, "verbose": 0}
    return KerasEstimator(**{**given, "model": model, "random_seed": 0, **others}).fit_on_parquet()


@pytest.mark.thorough
def test_keras_with_a_compiled_model_a_schedule_callbacks_and_a_checkpoint_of_the_best(
    store: LocalStore, tmp_path: Path
) -> None:
    import keras

    from horovod.spark.keras import KerasModel
    from horovod.spark.keras.bytes import model_of, scaled

    def made(outputs: int = 1) -> Any:
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(outputs)])

    backend = Here()
    model = made()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    first = fit_keras(store, model, run_id="c", backend=backend)
    assert isinstance(first, KerasModel) and set(first.getHistory()) == {"loss", "mae"}
    assert backend.env == {"KERAS_BACKEND": "tensorflow", "LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}
    again = fit_keras(store, model, run_id="c", epochs=1)
    assert again.getHistory()["loss"][0] < first.getHistory()["loss"][0]
    assert int(again.getModel().optimizer.iterations.numpy()) == 3 * 8

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    result = fit_keras(store, made(), optimizer=keras.optimizers.SGD(schedule), loss=keras.losses.MeanSquaredError())
    assert result.getModel().optimizer.get_config()["learning_rate"]["class_name"] == "ExponentialDecay"
    twice = scaled(keras.optimizers.SGD(schedule), 2)
    assert float(twice.learning_rate.numpy()) == pytest.approx(0.2)
    plain = made()
    plain.compile(twice, "mse")
    plain.save(tmp_path / "scaled.keras")
    config = model_of((tmp_path / "scaled.keras").read_bytes()).optimizer.get_config()
    assert config["learning_rate"]["class_name"] == "ExponentialDecay"

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            (tmp_path / f"epoch-{epoch}").touch()

    best = keras.callbacks.ModelCheckpoint(
        "x.weights.h5", save_best_only=True, save_weights_only=True, monitor="val_loss"
    )
    classes = fit_keras(
        store,
        made(3),
        optimizer="sgd",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        label_cols=["c"],
        metrics=["accuracy"],
        validation=0.1,
        checkpoint_callback=best,
        callbacks=[Count()],
        sample_weight_col="w",
    )
    assert (tmp_path / "epoch-1").exists() and classes._metadata["c"]["output_size"] == 3
    assert "val_loss" in classes.getHistory()
    for wrong, text in (({"loss": "mse"}, "Optimizer parameter"), ({"optimizer": "sgd"}, "loss is required")):
        with pytest.raises(ValueError, match=text):
            fit_keras(store, made(), **wrong)
    with pytest.raises(ValueError, match="no backward_passes_per_step"):
        from horovod.spark.keras import KerasEstimator

        KerasEstimator(model=model, label_cols=["y"]).setBackwardPassesPerStep(2).fit_on_parquet()
    assert json.loads((tmp_path / "runs/c/logs/history.jsonl").read_text().splitlines()[0])["epoch"] == 0
