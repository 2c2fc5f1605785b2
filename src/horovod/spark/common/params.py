# SPDX-License-Identifier: Apache-2.0
"""The parameters of estimators and models, as Spark ML has them: a Param, a default, a setter and a getter each.

The table of rows makes all four. `with_params` adds those of a subclass.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from pyspark import keyword_only
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasOutputCols

__all__ = ["EstimatorParams", "ModelParams", "Row", "with_params"]

_INT, _BOOL, _STRING = TypeConverters.toInt, TypeConverters.toBoolean, TypeConverters.toString
_STRINGS, _FLOATS = TypeConverters.toListString, TypeConverters.toListFloat

Owner = TypeVar("Owner", bound=type)


class Row(NamedTuple):
    """A parameter: name, text, default and type; its suffix in getters and setters, or its setter, if unusual."""

    name: str
    text: str
    default: Any = None
    converter: Callable[[Any], Any] | None = None
    suffix: str = ""
    setter: str = ""

    @property
    def title(self) -> str:
        """The name in getters: setBatchSize for batch_size."""
        return self.suffix or "".join(part.capitalize() for part in self.name.split("_"))


def with_params(*rows: Row) -> Callable[[Owner], Owner]:
    """A class decorator: gives a subclass of Params these rows, with their getters and setters, unless it has them."""

    def extend(owner: Owner) -> Owner:
        for row in rows:
            converter = {} if row.converter is None else {"typeConverter": row.converter}
            setattr(owner, row.name, Param(Params._dummy(), row.name, row.text, **converter))
            setter = row.setter or f"set{row.title}"
            made = {setter: _setter(row.name, setter), f"get{row.title}": _getter(row.name, f"get{row.title}")}
            for name, method in made.items():
                if name not in vars(owner):
                    setattr(owner, name, method)
        inherited = getattr(owner, "_defaults_of_rows", {})
        owner._defaults_of_rows = {**inherited, **{row.name: row.default for row in rows}}  # type: ignore[attr-defined]
        return owner

    return extend


def _setter(name: str, method: str) -> Callable[[Any, Any], Any]:
    def set_value(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    set_value.__name__ = method
    set_value.__doc__ = f"Sets `{name}`; returns the object itself."
    return set_value


def _getter(name: str, method: str) -> Callable[[Any], Any]:
    def get_value(self: Any) -> Any:
        return self.getOrDefault(name)

    get_value.__name__ = method
    get_value.__doc__ = f"The value of `{name}`."
    return get_value


def _copied(value: Any) -> Any:
    """A default of an object's own, so that a user may change the list."""
    return type(value)(value) if isinstance(value, (list, dict)) else value


class _HorovodParams(Params):
    """Sets the defaults of the table, and parameters by name."""

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(**{name: _copied(value) for name, value in self._defaults_of_rows.items()})

    @keyword_only
    def setParams(self, **kwargs: Any) -> Any:
        """Sets parameters by name. One that is None keeps its default."""
        return self._set(**{name: value for name, value in self._input_kwargs.items() if value is not None})

    def _set(self, **kwargs: Any) -> Any:
        for name in kwargs:
            if not self.hasParam(name):
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}")
        return super()._set(**kwargs)


@with_params(
    Row("num_proc", "number of ranks; the default parallelism of Spark without it"),
    Row("model", "the model to train"),
    Row("backend", "runs the training function in ranks; SparkBackend(num_proc) without it"),
    Row("store", "where data, checkpoints and logs are kept"),
    Row("optimizer", "the optimizer"),
    Row("loss", "a loss, or one for each label"),
    Row("loss_weights", "the weight of each label's loss", None, _FLOATS),
    Row("sample_weight_col", "the column of sample weights", None, _STRING),
    Row("metrics", "metrics to compute for training and validation", []),
    Row("feature_cols", "feature columns; all but the labels without it", None, _STRINGS),
    Row("label_cols", "label columns", None, _STRINGS),
    Row("continuous_cols", "continuous columns, for NVTabular", None, _STRINGS),
    Row("categorical_cols", "categorical columns, for NVTabular", None, _STRINGS),
    Row("validation", "a fraction in [0, 1) for a random split, or the name of a column: rows > 0 are for validation"),
    Row("gradient_compression", "how gradients are compressed: hvd.Compression"),
    Row("compress_sparse_cols", "store sparse vectors compressed", False, _BOOL),
    Row("batch_size", "rows of a batch of each rank", 32, _INT),
    Row("val_batch_size", "rows of a validation batch; batch_size without it", None, _INT),
    Row("epochs", "number of epochs", 1, _INT),
    Row("verbose", "0: silent, 1 or more: progress", 1, _INT),
    Row("callbacks", "callbacks of the framework", []),
    Row("random_seed", "seed of the framework and of shuffling", None, _INT),
    Row("shuffle_buffer_size", "deprecated: rows of the pool that is shuffled", None, _INT, "ShufflingBufferSize"),
    Row("shuffle", "shuffle the training rows", True, _BOOL),
    Row("partitions_per_process", "Parquet files for each rank", 10, _INT),
    Row("run_id", "name of the run in the store; training starts from its checkpoint if there is one", None, _STRING),
    Row("train_steps_per_epoch", "batches of an epoch; those of all rows without it", None, _INT),
    Row("validation_steps_per_epoch", "validation batches of an epoch; those of all rows without it", None, _INT),
    Row("transformation_fn", "a function of a pandas DataFrame of rows, which returns the changed one"),
    Row("transformation_edit_fields", "columns that transformation_fn changes: (name, NumPy type, shape, nullable)"),
    Row("transformation_removed_fields", "names of columns that transformation_fn removes"),
    Row("train_reader_num_workers", "threads that read training data", 2, None, "TrainReaderNumWorker"),
    Row("val_reader_num_workers", "threads that read validation data", 2, None, "ValReaderNumWorker"),
    Row("reader_pool_type", "thread, process or dummy: all read with threads", "thread"),
    Row("label_shapes", "the shape of each label, -1 for the batch"),
    Row("inmemory_cache_all", "keep the decoded data in memory", False, _BOOL, "InMemoryCacheAll"),
    Row("use_gpu", "train on the GPU if there is one", True, _BOOL),
    Row("mp_start_method", "start method of multiprocessing in the ranks", None, _STRING),
    Row("backward_passes_per_step", "backward passes before gradients are reduced", 1, _INT),
    Row("tensorflow_dataset_prefetch_buffer_size", "batches that TensorFlow loads ahead, 0 for its choice", 0, _INT),
)
class EstimatorParams(_HorovodParams):
    """The parameters that all estimators have."""

    def setShufflingBufferSize(self, value: int | None) -> Any:
        """Sets `shuffle_buffer_size`; deprecated."""
        return self._set(shuffle_buffer_size=value)

    def _set(self, **kwargs: Any) -> Any:
        if kwargs.get("shuffle_buffer_size") is not None:
            text = "shuffle_buffer_size is deprecated: the reader chooses its pool; use shuffle=False for no shuffling"
            warnings.warn(text, DeprecationWarning, stacklevel=3)
        return super()._set(**kwargs)


@with_params(
    Row("history", "loss and metrics of each epoch"),
    Row("model", "the trained model"),
    Row("feature_columns", "feature columns"),
    # The misspelt name is Horovod's.
    Row("label_columns", "label columns", None, None, "", "setLabelColoumns"),
    Row("run_id", "name of the run that trained the model"),
)
class ModelParams(_HorovodParams, HasOutputCols):
    """The parameters that all trained models have. `outputCols`, by default `<label>__output`, is Spark's."""

    def setLabelColumns(self, value: list[str]) -> Any:
        """Sets `label_columns`, and the names of the output columns that follow from it."""
        return self.setLabelColoumns(value)

    def setOutputCols(self, value: list[str]) -> Any:
        """Sets the names of the columns that `transform` appends, one for each label."""
        return self._set(outputCols=value)

    def _set(self, **kwargs: Any) -> Any:
        if kwargs.get("label_columns") is not None:
            self._setDefault(outputCols=[f"{name}__output" for name in kwargs["label_columns"]])
        return super()._set(**kwargs)
