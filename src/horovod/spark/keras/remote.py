# SPDX-License-Identifier: Apache-2.0
"""KerasEstimator's ranks: `fit` with Horovod's callbacks, and rank 0's checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

import horovod.keras as hvd
from horovod.core.objects import allgather_object
from horovod.spark.common.serialization import loads
from horovod.spark.common.training import Saver, Task, data_module_of, device_kind, same_device, saver_of
from horovod.spark.keras.bytes import decoded, model_of, optimizer_of, scaled
from horovod.spark.keras.datamodule import ParquetKerasDataModule

__all__ = ["Batches", "compiled", "inputs_of", "train"]


def train(task: Task) -> dict[str, Any] | None:
    """Trains in a rank; the result of rank 0."""
    hvd.init()
    kind = device_kind(task, _has_gpu())
    same_device(allgather_object(kind))
    _choose_device(kind)
    if task.seed is not None:
        keras.utils.set_random_seed(task.seed + hvd.rank())
    content = loads(task.model)
    objects = content["custom_objects"]
    model = compiled(content, objects, task.checkpoint, hvd.size())
    make = Batches(model, task)
    data = data_module_of(
        task, ParquetKerasDataModule, hvd.rank(), hvd.size(), False, make_dataset=make, **task.options["data"]
    )
    with data, saver_of(task, hvd.rank()) as saver:
        before = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        own = [_Checkpoint(saver, task.options["checkpoint_callback"])] if saver else []
        history = model.fit(
            data.train_data(),
            epochs=task.epochs,
            steps_per_epoch=task.train_steps,
            validation_data=data.val_data() if task.val_plan is not None else None,
            validation_steps=task.val_steps if task.val_plan is not None else None,
            callbacks=[*before, *task.options["callbacks"], *own],
            verbose=task.verbose if hvd.rank() == 0 else 0,
            shuffle=False,  # the reader does
        )
        if saver is None:
            return None
        outputs = model.predict_on_batch(make.inputs_of_one_row)
        return {
            "history": {name: [float(value) for value in values] for name, values in history.history.items()},
            "model": own[0].content(),
            "sizes": [output[:1].size for output in listed(outputs)],
            "failure": saver.failure,
        }


def compiled(content: Mapping[str, Any], objects: Any, checkpoint: bytes | None, size: int = 1) -> Any:
    """The model with the optimizer, the loss and the metrics of the estimator, or its own; distributed if size > 1."""
    model = model_of(checkpoint or content["model"], objects)
    own = getattr(model_of(content["model"], objects) if checkpoint else model, "get_compile_config", lambda: None)()
    arguments = keras.saving.deserialize_keras_object(own) if own else {}
    optimizer = getattr(model, "optimizer", None)
    if content["optimizer"] is not None and (checkpoint is None or optimizer is None):
        optimizer = optimizer_of(content["optimizer"], model, objects)
    for name in ("loss", "metrics", "loss_weights"):
        if content[name] is not None:
            arguments[name] = decoded(content[name], objects)
    if content["has_weights"] and arguments.get("metrics") is not None:
        arguments["weighted_metrics"] = []  # else Keras warns that the metrics are not weighted
    if size > 1:
        optimizer = hvd.DistributedOptimizer(scaled(optimizer, size), **content["gradient_compression"])
    model.compile(**{**arguments, "optimizer": optimizer})
    return model


def _has_gpu() -> bool:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return len(tf.config.list_physical_devices("GPU")) > 0
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.is_available()
    import jax

    return jax.default_backend() == "gpu"


def _choose_device(kind: str) -> None:
    """Of several GPUs of this host, a rank takes its own."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        mine = gpus if len(gpus) == 1 else gpus[hvd.local_rank() : hvd.local_rank() + 1]
        tf.config.set_visible_devices(mine if kind == "gpu" else [], "GPU")
    elif kind == "gpu" and backend == "torch":
        import torch

        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    elif kind == "gpu":
        import jax

        devices = jax.local_devices()
        jax.config.update("jax_default_device", devices[hvd.local_rank() % len(devices)])


def listed(value: Any) -> list[Any]:
    """A value, or a list or dict of them, as a list."""
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]


def inputs_of(model: Any, columns: Sequence[np.ndarray[Any, Any]]) -> Any:
    """The features in the shapes and types of the model's inputs; float32 if the model does not tell them."""
    inputs = getattr(model, "inputs", None) or []
    if len(inputs) != len(columns):
        made = [column.astype(np.float32) if column.dtype.kind in "iufb" else column for column in columns]
    else:
        made = [_shaped(column, like.shape, like.dtype) for column, like in zip(columns, inputs, strict=True)]
    return made[0] if len(made) == 1 else tuple(made)


def _shaped(column: np.ndarray[Any, Any], shape: Sequence[int | None], dtype: Any) -> np.ndarray[Any, Any]:
    sizes = [len(column), *(-1 if length is None else length for length in shape[1:])]
    return column.reshape(sizes).astype(keras.backend.standardize_dtype(dtype), copy=False)


class Batches:
    """Makes (inputs, labels) or (inputs, labels, weights) of the columns of a batch."""

    def __init__(self, model: Any, task: Task) -> None:
        self._model = model
        self._task = task
        self._shapes = [tuple(output.shape) for output in getattr(model, "outputs", None) or []]
        self.inputs_of_one_row: Any = None

    def __call__(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Any, ...]:
        task = self._task
        columns = [batch[name] for name in task.features]
        if self.inputs_of_one_row is None:
            self.inputs_of_one_row = inputs_of(self._model, [column[:1] for column in columns])
        labels = [self._label(batch[name], number) for number, name in enumerate(task.labels)]
        made: tuple[Any, ...] = (inputs_of(self._model, columns), labels[0] if len(labels) == 1 else tuple(labels))
        if task.sample_weight:
            made = (*made, batch[task.sample_weight].astype(np.float32))
        return made

    def _label(self, values: np.ndarray[Any, Any], number: int) -> np.ndarray[Any, Any]:
        if self._task.label_shapes:
            return values.reshape(tuple(self._task.label_shapes[number]))
        shape = self._shapes[number] if number < len(self._shapes) else ()
        if None not in shape[1:] and np.prod(shape[1:], dtype=int) * len(values) == values.size:
            return values.reshape(len(values), *shape[1:])
        return values


class _Checkpoint(keras.callbacks.Callback):
    """Rank 0's checkpoint of each epoch, with the learning rate of one rank, by the user's callback or Keras' own."""

    def __init__(self, saver: Saver, inner: Any) -> None:
        super().__init__()
        self._saver = saver
        weights_only = getattr(inner, "save_weights_only", False)
        suffix = ".weights.h5" if weights_only else ".keras"
        self._path = saver.checkpoint.removesuffix(suffix) + suffix
        self._inner = inner or keras.callbacks.ModelCheckpoint(self._path)
        self._inner.filepath = self._path
        self._weights_only = weights_only

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._inner.set_model(model)

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._inner.set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        self._inner.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._inner.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        with _RateOfOneRank(self.model.optimizer):
            self._inner.on_epoch_end(epoch, logs)
        self._saver.log({"epoch": epoch, **{name: float(value) for name, value in (logs or {}).items()}})
        self._saver.upload()

    def content(self) -> bytes:
        """The checkpoint, as a whole model; that of the last epoch if the callback has written none."""
        if self._weights_only and os.path.exists(self._path):
            self.model.load_weights(self._path)
        if self._weights_only or not os.path.exists(self._path):
            with _RateOfOneRank(self.model.optimizer):
                self._path += ".keras"
                self.model.save(self._path)
        with open(self._path, "rb") as file:
            return file.read()


class _RateOfOneRank:
    """Divides a learning rate by the world's size for a while. That of a schedule is divided where it is loaded."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._is_number = not isinstance(optimizer.get_config().get("learning_rate"), dict)

    def __enter__(self) -> None:
        if self._is_number:
            self._rate = float(keras.ops.convert_to_numpy(self._optimizer.learning_rate))
            self._optimizer.learning_rate = self._rate / hvd.size()

    def __exit__(self, *exception: object) -> None:
        if self._is_number:
            self._optimizer.learning_rate = self._rate
