# SPDX-License-Identifier: Apache-2.0
"""The ranks of TorchEstimator on Lightning: a Trainer with HorovodStrategy."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

import horovod.torch as hvd
from horovod.spark.common.training import Saver, Task, data_module_of, device_kind, same_device, saver_of, say
from horovod.spark.torch.remote import Losses, explained, inputs_of, listed
from horovod.spark.torch.util import deserialize, serialize
from horovod.torch.lightning.strategy import strategy_of

__all__ = ["train"]


def train(task: Task) -> dict[str, Any] | None:
    """Trains in a rank; the result of rank 0."""
    hvd.init()
    lightning = importlib.import_module(task.options["package"])
    kind = device_kind(task, torch.cuda.is_available() and task.options["num_gpus"] != 0)
    same_device(hvd.allgather_object(kind))
    if task.seed is not None:
        torch.manual_seed(task.seed + hvd.rank())
    model, optimizer = deserialize(task.model)
    module = model
    if not isinstance(model, lightning.LightningModule):
        module = type("Plain", (_Plain, lightning.LightningModule), {})(task, model, optimizer)
    with saver_of(task, hvd.rank()) as saver, tempfile.TemporaryDirectory(prefix="hvd-") as folder:
        report = type("Report", (_Report, lightning.Callback), {})(task, saver)
        checkpoint = _Checkpoint(task.checkpoint, folder)
        trainer = _trainer(task, lightning, kind, report, saver.folder if saver else folder, checkpoint.epochs)
        inputs: list[torch.Tensor] = []
        with _data(task, inputs) as data, explained(inputs, task.options["input_shapes"]):
            trainer.fit(module, datamodule=data, **checkpoint.arguments(trainer))
        if saver is None:
            return None
        states = _best(trainer, module)
        if optimizer is not None and states:
            optimizer.load_state_dict(states[0])
        return {
            "history": report.history,
            "model": serialize(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict() if optimizer is not None else None}
            ),
            "sizes": report.sizes(module),
            "failure": saver.failure,
        }


def _trainer(task: Task, lightning: Any, kind: str, report: Any, folder: str, epochs_before: int) -> Any:
    options = task.options
    compression = {} if options["compression"] is None else {"compression": options["compression"]}
    more = dict(options["trainer_args"])
    callbacks = [*options["callbacks"], *(more.pop("callbacks", None) or [])]
    saves = [each for each in callbacks if isinstance(each, lightning.callbacks.ModelCheckpoint)]
    for callback in saves:
        if callback.dirpath is None:
            callback.dirpath = folder
    if options["passes"] > 1:
        more.setdefault("accumulate_grad_batches", options["passes"])
    more.pop("strategy", None)
    given = {
        "accelerator": kind,
        "devices": 1,
        "max_epochs": epochs_before + task.epochs,
        "default_root_dir": os.path.join(folder, task.store.logs_subdir),
        "enable_checkpointing": bool(saves),
        "enable_progress_bar": task.verbose > 1,
        "enable_model_summary": task.verbose > 1,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        **options["trainer"],
    }
    strategy = strategy_of(options["package"])(**compression)
    return lightning.Trainer(strategy=strategy, callbacks=[*callbacks, report], **{**given, **more})


class _Checkpoint:
    """The run's checkpoint in the store, which the training goes on from."""

    def __init__(self, content: bytes | None, folder: str) -> None:
        self.epochs, self._path = 0, ""
        if content is None:
            return
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
        if "pytorch-lightning_version" not in found:
            raise ValueError("the checkpoint of the run was not written by Lightning\nhint: give another run_id")
        self.epochs = found["epoch"] + 1
        self._path = os.path.join(folder, "from.ckpt")
        with open(self._path, "wb") as file:
            file.write(content)

    def arguments(self, trainer: Any) -> dict[str, Any]:
        """Keywords of Trainer.fit."""
        if not self._path:
            return {}
        trusted = {"weights_only": False} if "weights_only" in inspect.signature(trainer.fit).parameters else {}
        return {"ckpt_path": self._path, **trusted}


@contextlib.contextmanager
def _data(task: Task, inputs: list[torch.Tensor]) -> Iterator[Any]:
    """The rank's data module: the user's class, or the default one. `inputs` gets the features of a batch."""
    from horovod.spark.lightning.datamodule import module_of

    cls = task.data_module or module_of(task.options["package"])
    data = data_module_of(
        dataclasses.replace(task, data_module=functools.partial(_made, cls)),
        cls,
        hvd.rank(),
        hvd.size(),
        drop_last=True,
        reader_worker_count=task.readers[0],
        transformation=task.transformation,
        seed=task.seed,
        prepare_batch=functools.partial(_prepared, task, inputs),
        **task.options["loading"],
        **task.options["data"],
    )
    try:
        yield data
    finally:
        data.teardown("fit")


def _made(cls: Any, **given: Any) -> Any:
    """An instance, made with those of the keywords that the class takes."""
    known = inspect.signature(cls).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    return cls(**{name: value for name, value in given.items() if takes_all or name in known})


def _prepared(task: Task, inputs: list[torch.Tensor], batch: dict[str, Any]) -> dict[str, Any]:
    """Numbers of float type as float32, and the shapes that were declared."""
    made = {name: value.float() if value.is_floating_point() else value for name, value in batch.items()}
    features = [made[name] for name in task.features]
    inputs[:] = inputs_of(features, task.options["input_shapes"])
    made.update(zip(task.features, inputs, strict=True))
    for name, shape in zip(task.labels, task.label_shapes or (), strict=False):
        made[name] = made[name].reshape(tuple(shape))
    return made


def _best(trainer: Any, module: Any) -> list[Any]:
    """Loads the best weights if a callback has them; the states of the optimizers of that time."""
    path = getattr(trainer.checkpoint_callback, "best_model_path", "")
    if not path:
        return []
    found = torch.load(path, map_location="cpu", weights_only=False)
    module.load_state_dict(found["state_dict"])
    states: list[Any] = found["optimizer_states"]
    return states


class _Plain:
    """A module of PyTorch as a LightningModule; mixed in before it."""

    log: Any
    device: Any

    def __init__(self, task: Task, model: torch.nn.Module, optimizer: Any) -> None:
        super().__init__()
        self.model = model
        self._optimizer = optimizer
        self._losses = Losses(task, torch.device("cpu"))
        self._metrics = task.options["metrics"]

    def forward(self, *inputs: Any) -> Any:
        return self.model(*inputs)

    def training_step(self, batch: Any, index: int) -> Any:
        return self._step(batch, "train")

    def validation_step(self, batch: Any, index: int) -> None:
        self._step(batch, "val")

    def configure_optimizers(self) -> Any:
        return self._optimizer

    def _step(self, batch: Any, kind: str) -> Any:
        self._losses.device = self.device
        inputs, labels, weights = self._losses.parts(batch)
        outputs, labels = self._losses.fitted(self.model(*inputs), labels)
        loss = self._losses.loss(outputs, labels, weights)
        values = {f"{kind}_loss": loss.detach()}
        with torch.no_grad():
            for number, group in enumerate(self._metrics):
                functions = group * len(labels) if len(group) == 1 else group
                for name, function, output, label in zip(
                    self._losses.task.labels, functions, outputs, labels, strict=True
                ):
                    values[f"{kind}_group_{number}_{name}"] = torch.as_tensor(function(output.detach(), label)).float()
        for name, value in values.items():
            self.log(name, value, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(labels[0]))
        return loss


class _Report:
    """A callback, mixed in before Lightning's Callback: the history, and rank 0's checkpoint of each epoch."""

    def __init__(self, task: Task, saver: Saver | None) -> None:
        self._task, self._saver = task, saver
        self.history: list[dict[str, Any]] = []
        self._row: list[Any] = []
        self._sum: Any = 0.0  # of the losses of an epoch, on their device
        self._batches = 0

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._sum, self._batches = 0.0, 0

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        if not self._row and isinstance(batch, dict) and set(self._task.features) <= set(batch):
            self._row = [batch[name][:1].cpu() for name in self._task.features]

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        if self._task.options["terminate_on_nan"] and not torch.isfinite(loss).all():
            raise ValueError(
                f"the loss is {float(loss.detach())} on rank {hvd.rank()}, in epoch {trainer.current_epoch}, step "
                f"{trainer.global_step} (terminate_on_nan)"
            )

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._sum, self._batches = self._sum + loss.detach().double(), self._batches + 1

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        own = torch.tensor([float(self._sum), self._batches], dtype=torch.float64)
        total, batches = hvd.allreduce(own, op=hvd.Sum, name="lightning.loss").tolist()
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        entry = {"epoch": trainer.current_epoch, "train": {"loss": total / max(batches, 1)}, "metrics": metrics}
        self.history.append(entry)
        if self._task.store.saving_runs:
            trainer.save_checkpoint(self._saver.checkpoint if self._saver else "", weights_only=False)
        if self._saver is not None:
            say(self._task, f"epoch {entry['epoch'] + 1}: training loss {entry['train']['loss']:.4g}")
            self._saver.log(entry)
            self._saver.upload()

    def sizes(self, module: Any) -> list[int]:
        """The number of values of each output; none if the data module's batches have no columns."""
        if not self._row:
            return []
        with torch.no_grad():
            outputs = listed(module.eval()(*self._row))
        return [output[:1].numel() for output in outputs]
