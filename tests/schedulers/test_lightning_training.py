# SPDX-License-Identifier: Apache-2.0
"""TorchEstimator on Lightning, in one rank of this process: no JVM. Two ranks: test_spark_estimators.py."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import logging
import pkgutil
import threading
from pathlib import Path
from typing import Any

import pytest
from schedulers.test_spark_training import ROWS, Here, model_of_torch, one_generation, store  # noqa: F401
from unit.core import test_surface as surface

from horovod.spark.common.backend import SparkBackend
from horovod.spark.common.store import LocalStore

pytestmark = pytest.mark.thorough
torch = pytest.importorskip("torch", reason="not run: torch is not installed")
pytest.importorskip("pyspark", reason="not run: pyspark is not installed")
if importlib.util.find_spec("lightning") is None:
    pytest.skip("not run: lightning is not installed", allow_module_level=True)


@functools.cache
def net_class() -> Any:
    """Here, as Lightning takes 5 s of processor time to import, also where this file is only collected."""
    import lightning.pytorch as pl

    class Net(pl.LightningModule):
        """2 a - b, or whatever `labels` is, from `d`."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = model_of_torch(3, 1)
            self.kinds: set[Any] = set()

        def forward(self, d: Any) -> Any:
            return self.layers(d)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = torch.nn.functional.mse_loss(self(batch["d"]), batch["y"])
            self.log("train", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("off", (self(batch["d"]) - batch["y"]).abs().mean(), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Net


def fit(store: LocalStore, model: Any = None, **others: Any) -> Any:  # noqa: F811
    from horovod.spark.lightning import TorchEstimator

    given = {
        "model": model or net_class()(),
        "backend": Here(),
        "store": store,
        "feature_cols": ["d"],
        "label_cols": ["y"],
        "label_shapes": [[-1, 1]],
        "epochs": 2,
        "verbose": 0,
        "random_seed": 0,
        "validation": 0.1,
    }
    return TorchEstimator(**{**given, **others}).fit_on_parquet()


def losses(model: Any) -> list[float]:
    return [entry["train"]["loss"] for entry in model.getHistory()]


def test_a_module_of_lightning_learns_and_a_run_goes_on(store: LocalStore, tmp_path: Path) -> None:  # noqa: F811
    first = fit(store, run_id="r")
    assert losses(first)[1] < losses(first)[0] and first.getHistory()[1]["metrics"]["off"] < 0.5
    assert type(first).__module__ == "horovod.spark.lightning.estimator" and type(first.getModel()) is net_class()
    assert first._metadata["y"]["output_size"] == 1
    more = fit(store, run_id="r", epochs=1, trainer_args={"gradient_clip_val": 1.0})
    assert [entry["epoch"] for entry in more.getHistory()] == [2] and losses(more)[0] < losses(first)[1]
    lines = (tmp_path / "runs/r/logs/history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == more.getHistory()
    found = torch.load(tmp_path / "runs/r/checkpoint", weights_only=False)
    assert (found["epoch"], found["global_step"]) == (2, 3 * (ROWS // 32))
    assert torch.equal(found["state_dict"]["layers.0.weight"], more.getModel().layers[0].weight)
    (tmp_path / "runs/r/checkpoint").write_bytes(torch_bytes({"epoch": 1}))
    with pytest.raises(ValueError, match="checkpoint of the run was not written by Lightning\nhint: give another"):
        fit(store, run_id="r")


def torch_bytes(value: Any) -> bytes:
    from horovod.spark.torch.util import serialize

    return serialize(value)


def test_a_module_of_torch_trains_as_with_its_own_estimator(store: LocalStore) -> None:  # noqa: F811
    from horovod.spark import torch as plain

    def made() -> dict[str, Any]:
        model = model_of_torch(3, 1)
        return {
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
            "loss": torch.nn.MSELoss(),
            "sample_weight_col": "w",
            "metrics": [lambda a, b: (a - b).abs().mean()],
            "epochs": 3,
            "verbose": 0,
            "random_seed": 0,
            "feature_cols": ["d"],
            "label_cols": ["y"],
        }

    ours = fit(store, **made(), label_shapes=None, train_async_data_loader_queue_size=2)
    given = {**made(), "backend": Here(), "store": store, "validation": 0.1}
    theirs = plain.TorchEstimator(**given).fit_on_parquet()
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-4)
    last, expected = ours.getHistory()[-1]["metrics"], theirs.getHistory()[-1]
    assert last["val_loss"] == pytest.approx(expected["validation"]["loss"], rel=1e-4)
    assert last["val_group_0_y"] == pytest.approx(expected["validation"]["all_metrics"][0]["group_0_y"], rel=1e-4)
    for a, b in zip(ours.getModel().parameters(), theirs.getModel().parameters(), strict=True):
        torch.testing.assert_close(a, b)
    states = [model.getOptimizer().state_dict()["state"][0]["momentum_buffer"] for model in (ours, theirs)]
    torch.testing.assert_close(*states)


def test_the_best_weights_of_a_checkpoint_callback_are_returned(store: LocalStore, tmp_path: Path) -> None:  # noqa: F811
    import lightning.pytorch as pl

    class Worse(net_class()):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 2:
                torch.nn.init.constant_(self.layers[0].weight, 100.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1 if self.layers[0].weight.abs().max() < 50 else 0.0)

    best = pl.callbacks.ModelCheckpoint(monitor="off", filename="best-{epoch}")
    model = fit(store, Worse(), epochs=3, callbacks=[best], run_id="b", train_steps_per_epoch=2)
    assert model.getModel().layers[0].weight.abs().max() < 50
    assert [Path(path).name for path in store.get_checkpoints("b")] == ["best-epoch=0.ckpt", "best-epoch=1.ckpt"]


def test_a_data_module_of_the_user_and_one_of_horovods_name(store: LocalStore, tmp_path: Path) -> None:  # noqa: F811
    import lightning.pytorch as pl

    from horovod.spark.lightning.datamodule import PetastormDataModule

    class Own(pl.LightningDataModule):
        def __init__(self, train_dir: str, cur_shard: int, shard_count: int) -> None:
            super().__init__()
            (tmp_path / f"{Path(train_dir).name}.{cur_shard}.{shard_count}").touch()

        def train_dataloader(self) -> Any:
            x = torch.rand(64, 3)
            rows = [{"d": d, "y": y} for d, y in zip(x, x.sum(1, keepdim=True), strict=True)]
            return torch.utils.data.DataLoader(rows, 32)

    model = fit(store, data_module=Own, validation=None)
    assert (tmp_path / "intermediate_train_data.0.1").exists() and losses(model)[1] < losses(model)[0]

    class Twice(PetastormDataModule):
        def train_dataloader(self) -> Any:
            self.batches = super().train_dataloader()
            return self.batches

        def teardown(self, stage: Any = None) -> None:
            (tmp_path / f"steps-{len(self.batches)}-{stage}").touch()
            super().teardown(stage)

    queues = {"train_async_data_loader_queue_size": 3, "val_async_data_loader_queue_size": 2}
    fit(store, data_module=Twice, loader_num_epochs=1, epochs=1, **queues, inmemory_cache_all=True)
    assert (tmp_path / "steps-7-fit").exists()


def test_checkpoints_are_written_without_a_word_of_lightning(store: LocalStore, caplog: Any) -> None:  # noqa: F811
    log = logging.getLogger("lightning.pytorch")
    caplog.set_level(logging.INFO, log.name)
    log.addHandler(caplog.handler)
    try:
        fit(store, epochs=1)
    finally:
        log.removeHandler(caplog.handler)
    assert caplog.messages and not [text for text in caplog.messages if "weights_only" in text]


def test_errors_name_the_parameter_and_the_shapes(store: LocalStore) -> None:  # noqa: F811
    given = {"backend": SparkBackend(2, env={}), "callbacks": [threading.Lock()]}
    with pytest.raises(TypeError, match="^TorchEstimator.fit_on_parquet: callbacks cannot be pickled: .*in item 0"):
        fit(store, **given)
    model = model_of_torch(1, 1)
    given = {"optimizer": torch.optim.SGD(model.parameters(), 0.1), "loss": torch.nn.MSELoss()}
    with pytest.raises(RuntimeError, match=r"\nhint: a feature of one number .* input_shapes=\[\[-1, 1\]\] makes"):
        fit(store, model, feature_cols=["a"], **given)


def test_what_cannot_be_is_refused_before_the_training(store: LocalStore) -> None:  # noqa: F811
    import lightning.pytorch as pl

    class NoForward(pl.LightningModule):
        pass

    class Bad(net_class()):
        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step(batch, index) * float("nan")

    for others, text in (
        ({"model": NoForward()}, "the model has no `forward`"),
        ({"model": model_of_torch(3, 1)}, "Optimizer parameter is required"),
        ({"trainer_args": {"accelerator": "horovod"}}, "trainer_args has accelerator='horovod'\nhint: leave it out"),
        ({"trainer_args": {"distributed_backend": "horovod"}}, "trainer_args has distributed_backend='horovod'\nhint"),
        ({"trainer_args": {"gpus": 1}}, r"trainer_args has `gpus`, which the Trainer of lightning.pytorch 2\.6"),
        ({"train_minibatch_fn": print}, "train_minibatch_fn is for horovod.spark.torch\nhint"),
        ({"num_gpus": 2}, "num_gpus is 2: expected 0 or 1"),
        ({"model": Bad(), "terminate_on_nan": True}, "the loss is nan on rank 0, in epoch 0, step 0"),
    ):
        with pytest.raises(ValueError, match=text):
            fit(store, **others)
    with pytest.warns(UserWarning, match="loss: not used, as the model is a LightningModule"):
        fit(store, loss=torch.nn.MSELoss(), epochs=1)


@pytest.mark.parametrize("name", ["lightning", "lightning.datamodule", "lightning.util"])
def test_a_module_has_horovods_names_parameters_and_defaults(name: str) -> None:
    module = f"horovod.spark.{name}"
    owner = pkgutil.resolve_name(module)
    entries = surface.SURFACE[module].items()
    assert [text for name, entry in entries for text in surface.compared(module, name, owner, entry)] == []
    assert "horovod" in (inspect.getmodule(owner) or owner).__name__
