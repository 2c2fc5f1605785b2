# SPDX-License-Identifier: Apache-2.0
"""KerasEstimator and the KerasModel that its `fit` returns. For Keras 3, on any of its backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from pyspark import keyword_only

from horovod.launcher.function.unpicklable import named
from horovod.spark.common import util
from horovod.spark.common.estimator import HorovodEstimator, HorovodModel
from horovod.spark.common.inference import Predictor, transform
from horovod.spark.common.params import Row, with_params
from horovod.spark.common.serialization import dumps, loads
from horovod.spark.common.store import Store
from horovod.spark.keras import remote
from horovod.spark.keras.bytes import decoded, encoded, model_of, model_to_bytes, optimizer_of, optimizer_to_dict

__all__ = ["KerasEstimator", "KerasModel"]

_HDFS = {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}


class _WithKerasModel:
    """A model is saved in the format `.keras`, an optimizer as its configuration and state."""

    def _to_save(self, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("model") is not None:
            values["model"] = model_to_bytes(values["model"])
        if values.get("optimizer") is not None:
            values["optimizer"] = optimizer_to_dict(values["optimizer"])
        for name in ("loss", "metrics"):
            if values.get(name) is not None:
                values[name] = encoded(values[name])
        return values

    def _from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        objects = values.get("custom_objects")
        if values.get("model") is not None:
            values["model"] = model_of(values["model"], objects)
        if values.get("optimizer") is not None:
            values["optimizer"] = optimizer_of(values["optimizer"], values["model"], objects)
        for name in ("loss", "metrics"):
            if values.get(name) is not None:
                values[name] = decoded(values[name], objects)
        return values


@with_params(
    Row("custom_objects", "classes and functions that the model's file names", {}),
    Row("checkpoint_callback", "the callback that writes checkpoints, keras.callbacks.ModelCheckpoint without it"),
    Row("data_module", "the class that reads the data in a rank"),
    Row("backend_env", "environment variables of the ranks", _HDFS),
)
class KerasEstimator(_WithKerasModel, HorovodEstimator):
    """Trains a Keras model on a DataFrame, on ranks that Spark starts.

    The optimizer, the loss and the metrics are those of a compiled model unless they are given. There is a feature
    column for each input of the model, whose shape and type it gets. Labels keep their type, and get the output's shape
    if they have as many values, or that of `label_shapes`.
    """

    _prefix = "keras"
    _rounds_up = True
    _sent_apart = ("model", "optimizer", "loss", "metrics", "custom_objects", "loss_weights", "gradient_compression")

    @keyword_only
    def __init__(
        self,
        num_proc: int | None = None,
        data_module: Any = None,
        model: Any = None,
        backend: Any = None,
        store: Any = None,
        custom_objects: Mapping[str, Any] | None = None,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Sequence[float] | None = None,
        sample_weight_col: str | None = None,
        gradient_compression: Any = None,
        metrics: Any = None,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        continuous_cols: Sequence[str] | None = None,
        categorical_cols: Sequence[str] | None = None,
        validation: float | str | None = None,
        callbacks: Any = None,
        batch_size: int | None = None,
        val_batch_size: int | None = None,
        epochs: int | None = None,
        verbose: int | None = None,
        random_seed: int | None = None,
        shuffle_buffer_size: int | None = None,
        shuffle: bool = True,
        partitions_per_process: int | None = None,
        run_id: str | None = None,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        transformation_fn: Callable[[Any], Any] | None = None,
        train_reader_num_workers: int | None = None,
        val_reader_num_workers: int | None = None,
        reader_pool_type: str = "thread",
        label_shapes: Sequence[Sequence[int]] | None = None,
        checkpoint_callback: Any = None,
        inmemory_cache_all: bool = False,
        backend_env: Mapping[str, str] | None = None,
        use_gpu: bool = True,
        mp_start_method: str | None = None,
        tensorflow_dataset_prefetch_buffer_size: int = 0,
    ) -> None:
        given = self._input_kwargs
        super().__init__()
        self.setParams(**given)

    def get_model_class(self) -> type:
        """The class of the models that `fit` returns."""
        return KerasModel

    def get_model_shapes(self) -> tuple[list[list[int]], list[list[int]]]:
        """The shapes of the model's inputs and outputs, -1 for what may vary."""
        model = self.getModel()
        inputs, outputs = getattr(model, "inputs", None) or [], getattr(model, "outputs", None) or []
        return _shapes_of(inputs), _shapes_of(outputs)

    def _check(self) -> None:
        super()._check()
        model = self.getModel()
        if self.getOptimizer() is None and getattr(model, "optimizer", None) is None:
            raise ValueError("Optimizer parameter is required, or a compiled model")
        if self.getLoss() is None and not getattr(model, "compiled", False):
            raise ValueError("loss is required, or a compiled model")
        if self.getBackwardPassesPerStep() != 1:
            raise ValueError("KerasEstimator has no backward_passes_per_step: use a larger batch_size")

    def _takes_text(self, feature: int) -> bool:
        inputs = getattr(self.getModel(), "inputs", None) or []
        return feature < len(inputs) and "string" in str(inputs[feature].dtype)

    def _check_shapes(self, metadata: Any, features: list[str]) -> None:
        inputs, _ = self.get_model_shapes()
        known = inputs if inputs and not any(-1 in shape[1:] for shape in inputs) else None
        util.check_shape_compatibility(
            metadata, features, self.getLabelCols(), known, label_shapes=self.getLabelShapes()
        )

    def _model_bytes(self) -> bytes:
        optimizer, compression = self.getOptimizer(), self.getGradientCompression()
        if isinstance(optimizer, str):
            optimizer = keras.optimizers.get(optimizer)
        made: dict[str, Any] = {}
        for name, make in (
            ("model", lambda: model_to_bytes(self.getModel())),
            ("optimizer", lambda: None if optimizer is None else optimizer_to_dict(optimizer)),
            ("loss", lambda: encoded(self.getLoss())),
            ("metrics", lambda: encoded(self.getMetrics()) or None),
        ):
            with named(self._caller, {}, dumps, name):
                made[name] = make()
        parts = {
            **made,
            "custom_objects": self.getCustomObjects(),
            "loss_weights": self.getLossWeights(),
            "gradient_compression": {} if compression is None else {"compression": compression},
        }
        with named(self._caller, parts, dumps):
            return dumps({**parts, "has_weights": self.getSampleWeightCol() is not None})

    def _options(self) -> Mapping[str, Any]:
        return {
            "callbacks": self.getCallbacks() or [],
            "checkpoint_callback": self.getCheckpointCallback(),
            "data": {"tensorflow_dataset_prefetch_buffer_size": self.getTensorflowDatasetPrefetchBufferSize()},
        }

    def _environment(self) -> Mapping[str, str] | None:
        return {"KERAS_BACKEND": keras.backend.backend(), **(self.getBackendEnv() or {})}

    def _checkpoint(self, store: Store, run_id: str) -> bytes | None:
        folder = store.get_checkpoint_path(run_id)
        name = store.get_checkpoint_filename().removesuffix(".keras")
        path = f"{folder}/{name}.keras"
        if not folder or not store.exists(path):
            return None
        read = getattr(store, "read_serialized_keras_model", None)
        content: bytes = read(path, self.getModel(), self.getCustomObjects()) if read else store.read(path)
        return content

    def _trainer(self) -> Any:
        return remote.train

    def _model_of(self, result: Mapping[str, Any], metadata: Any, features: list[str], run_id: str) -> KerasModel:
        content = loads(self._model_bytes())
        return KerasModel(
            history=result["history"],
            model=remote.compiled(content, self.getCustomObjects(), result["model"]),
            feature_columns=features,
            label_columns=self.getLabelCols(),
            custom_objects=self.getCustomObjects(),
            run_id=run_id,
            _metadata=metadata,
            _floatx=keras.config.floatx(),
        )


def _shapes_of(tensors: Sequence[Any]) -> list[list[int]]:
    return [[-1 if length is None else length for length in tensor.shape] for tensor in tensors]


@with_params(Row("custom_objects", "classes and functions that the model's file names", {}))
class KerasModel(_WithKerasModel, HorovodModel):
    """A trained Keras model. `getModel()` is the model, `getHistory()` the values of each epoch by name."""

    @keyword_only
    def __init__(
        self,
        history: Any = None,
        model: Any = None,
        feature_columns: Sequence[str] | None = None,
        label_columns: Sequence[str] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        _metadata: Any = None,
        _floatx: str | None = None,
    ) -> None:
        given = dict(self._input_kwargs)
        self._metadata = given.pop("_metadata", None)
        self._floatx = given.pop("_floatx", None)
        super().__init__()
        self.setParams(**given)

    def _transform(self, df: Any) -> Any:
        load = _Load(self.getCustomObjects())
        predictor = Predictor(model_to_bytes(self.getModel()), load, _call)
        return transform(
            df, predictor, self.getFeatureColumns(), self.getLabelColumns(), self.getOutputCols(), self._metadata
        )


class _Load:
    """Loads a model in a Spark worker."""

    def __init__(self, custom_objects: Any) -> None:
        self._objects = dumps(custom_objects)  # Spark's pickler may drop the files of functions

    def __call__(self, content: bytes) -> Any:
        return model_of(content, loads(self._objects), is_compiled=False)


def _call(model: Any, columns: Sequence[Any]) -> list[Any]:
    return remote.listed(model.predict_on_batch(remote.inputs_of(model, columns)))
