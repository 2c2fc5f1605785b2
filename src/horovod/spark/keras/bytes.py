# SPDX-License-Identifier: Apache-2.0
"""Bytes of Keras models, optimizers and the arguments of compile, and learning rates multiplied by the world's size."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

__all__ = [
    "ScaledSchedule",
    "decoded",
    "encoded",
    "model_of",
    "model_to_bytes",
    "optimizer_of",
    "optimizer_to_dict",
    "scaled",
    "unscaled",
]

_KERAS = "horovod_keras_object"


def model_to_bytes(model: Any) -> bytes:
    """The model in the format `.keras`, with its optimizer if it is compiled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        return path.read_bytes()


def model_of(content: bytes, custom_objects: Mapping[str, Any] | None = None, is_compiled: bool = True) -> Any:
    """The model that `model_to_bytes` or a checkpoint wrote; its learning rate is that of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(content)
        objects = {"ScaledSchedule": ScaledSchedule, **(custom_objects or {})}
        with warnings.catch_warnings():
            # An optimizer that has not run yet has no state.
            warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
            model = keras.saving.load_model(path, custom_objects=objects, compile=is_compiled, safe_mode=False)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = unscaled(model.optimizer)
    return model


def optimizer_to_dict(optimizer: Any) -> dict[str, Any]:
    """An optimizer's configuration and state, without Keras objects."""
    state = [keras.ops.convert_to_numpy(variable) for variable in optimizer.variables] if optimizer.built else []
    return {"config": keras.saving.serialize_keras_object(optimizer), "state": state}


def optimizer_of(entries: Mapping[str, Any], model: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The optimizer of `optimizer_to_dict`, for the variables of a model."""
    optimizer = keras.saving.deserialize_keras_object(entries["config"], custom_objects=dict(custom_objects or {}))
    if entries["state"]:
        optimizer.build(model.trainable_variables)
        for variable, value in zip(optimizer.variables, entries["state"], strict=True):
            variable.assign(value)
    return optimizer


def encoded(value: Any) -> Any:
    """Losses and metrics as configurations; functions, names, lists and dicts of them stay."""
    if isinstance(value, (list, tuple)):
        return [encoded(each) for each in value]
    if isinstance(value, dict):
        return {name: encoded(each) for name, each in value.items()}
    if isinstance(value, (keras.losses.Loss, keras.metrics.Metric)):
        return {_KERAS: keras.saving.serialize_keras_object(value)}
    return value


def decoded(value: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Losses and metrics that `encoded` wrote."""
    if isinstance(value, list):
        return [decoded(each, custom_objects) for each in value]
    if isinstance(value, dict):
        if _KERAS in value:
            return keras.saving.deserialize_keras_object(value[_KERAS], custom_objects=dict(custom_objects or {}))
        return {name: decoded(each, custom_objects) for name, each in value.items()}
    return value


class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule whose rates are multiplied."""

    def __init__(self, schedule: Any, factor: float) -> None:
        super().__init__()
        self.schedule = schedule
        self.factor = factor

    def __call__(self, step: Any) -> Any:
        return self.schedule(step) * self.factor

    def get_config(self) -> dict[str, Any]:
        """The inner schedule's configuration, and the factor."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "factor": self.factor}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> ScaledSchedule:
        """The schedule of `get_config`."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"], custom_objects=custom_objects)
        return cls(schedule, config["factor"])


def scaled(optimizer: Any, factor: float) -> Any:
    """The optimizer with its learning rate multiplied; another one if it has a schedule."""
    config = optimizer.get_config()
    if isinstance(config.get("learning_rate"), dict):
        schedule = keras.saving.deserialize_keras_object(config["learning_rate"])
        return _again(optimizer, {**config, "learning_rate": ScaledSchedule(schedule, factor)})
    optimizer.learning_rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate)) * factor
    return optimizer


def unscaled(optimizer: Any) -> Any:
    """The optimizer with its own schedule in place of a ScaledSchedule."""
    rate = optimizer.get_config().get("learning_rate")
    if not isinstance(rate, dict) or rate.get("class_name") != "ScaledSchedule":
        return optimizer
    schedule = ScaledSchedule.from_config(rate["config"]).schedule
    return _again(optimizer, {**optimizer.get_config(), "learning_rate": schedule})


def _again(optimizer: Any, config: dict[str, Any]) -> Any:
    """Another optimizer of the class, with the same state."""
    made = type(optimizer)(**config)
    if optimizer.built:
        made.build(optimizer._trainable_variables)
        for new, old in zip(made.variables, optimizer.variables, strict=True):
            new.assign(old)
    return made
