# SPDX-License-Identifier: Apache-2.0
"""The driver's part of every estimator: it checks, prepares the data, runs the ranks, and makes the model."""

from __future__ import annotations

import math
import secrets
import sys
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.ml import Estimator, Model

from horovod.core import pickling
from horovod.core.wording import counted, tell
from horovod.data import Plan
from horovod.launcher.function.unpicklable import named
from horovod.spark.common import dataset
from horovod.spark.common.backend import Backend, SparkBackend
from horovod.spark.common.datamodule import ParquetDataModule
from horovod.spark.common.params import EstimatorParams, ModelParams
from horovod.spark.common.serialization import NOT_SAVED, HorovodReadable, HorovodWritable
from horovod.spark.common.store import LocalStore, Store
from horovod.spark.common.training import Task, Transformation, train_on_rows
from horovod.spark.runner import called, name_of_call

__all__ = ["HorovodEstimator", "HorovodModel"]

_NO_NUMBERS = ("string", "varchar", "char", "date", "timestamp", "timestamp_ntz")
_STORE_HINT = "hint: store=Store.create('...'), a path or URL that the driver and all executors reach"


class HorovodEstimator(Estimator, EstimatorParams, HorovodReadable, HorovodWritable):
    """An estimator whose `fit` trains on ranks. A framework's subclass says how."""

    _prefix = "run"
    _rounds_up = False  # the number of steps, if the last batch is not full
    _sent_apart: tuple[str, ...] = ("model", "optimizer")  # parameters in _model_bytes, or that no rank gets

    def fit(self, df: Any, params: Any = None) -> Any:
        """Writes the DataFrame to the store unless it is there, trains, and returns the model.

        Without a store, the rows go to the disks of the ranks' machines, and are removed at the end.
        `params` overrides parameters, as in Spark ML: a dict, or a list of them for a list of models.
        """
        with called(f"{type(self).__name__}.fit"):
            return super().fit(df, params)

    def fit_on_parquet(self, params: Any = None, dataset_idx: int | None = None) -> Any:
        """Trains on Parquet files that are in the store: in get_train_data_path(dataset_idx) and the same of val."""
        if isinstance(params, (list, tuple)):
            return [self.fit_on_parquet(each, dataset_idx) for each in params]
        if params:
            return self.copy(params).fit_on_parquet(dataset_idx=dataset_idx)
        with called(f"{type(self).__name__}.fit_on_parquet"):
            self._check()
            self._check_pickling()
            backend, store = self._backend(), self._store()
            train_rows, val_rows, metadata, _ = dataset.get_simple_meta_from_parquet(
                store, self.getLabelCols(), self.getFeatureCols(), self.getSampleWeightCol(), dataset_idx
            )
            if self.getValidation() and not val_rows:
                raise ValueError(f"validation is set, and {store.get_val_data_path(dataset_idx)} has no rows")
            return self._fit_on_prepared_data(backend, store, train_rows, val_rows, metadata, dataset_idx)

    def _fit(self, df: Any) -> Any:
        self._check()
        self._check_types(df)
        self._check_pickling()
        if self.getStore() is None:
            return self._fit_without_store(df)
        backend, store = self._backend(), self._store()
        with dataset.prepare_data(
            backend.num_processes(),
            store,
            df,
            self.getLabelCols(),
            self._feature_columns(df.columns),
            self.getValidation(),
            self.getSampleWeightCol(),
            self.getCompressSparseCols(),
            self.getPartitionsPerProcess(),
            self.getVerbose(),
        ) as index:
            train_rows, val_rows, metadata, _ = dataset.get_dataset_properties(index)
            return self._fit_on_prepared_data(backend, store, train_rows, val_rows, metadata, index)

    def _check(self) -> None:
        """Refuses parameters that cannot work, before anything is written."""
        if self.getModel() is None:
            raise ValueError("Model parameter is required")
        if not self.getLabelCols():
            raise ValueError("label_cols is required: the names of the label columns")
        if self.getBackend() is not None and self.getNumProc() is not None:
            raise ValueError("both backend and num_proc were given: expected one; a backend has its number of ranks")
        dataset.check_validation(self.getValidation())
        if self.getStore() is not None and not isinstance(self.getStore(), Store):
            raise ValueError(
                f"store is {self.getStore()!r}: expected a Store\nhint: store=Store.create('...') makes one of a path"
            )
        if self.getNumProc() is not None and self.getNumProc() <= 0:
            raise ValueError(f"num_proc is {self.getNumProc()}: expected at least 1")
        for name in ("batch_size", "epochs", "partitions_per_process", "backward_passes_per_step"):
            if self.getOrDefault(name) is None or self.getOrDefault(name) <= 0:
                raise ValueError(f"{name} is {self.getOrDefault(name)}: expected at least 1")
        weights, labels = self.getLossWeights(), self.getLabelCols()
        if weights is not None and len(weights) != len(labels):
            raise ValueError(f"{counted(len(weights), 'loss weight')} for {counted(len(labels), 'label column')}")

    def _check_pickling(self) -> None:
        """Refuses what cannot be sent to the ranks, by the name of the parameter."""
        self._model_bytes()
        if self.getBackend() is not None and not isinstance(self.getBackend(), SparkBackend):
            return  # it may run the ranks in this process
        others = {
            param.name: value
            for param, value in self._paramMap.items()
            if param.name not in (*NOT_SAVED, *self._sent_apart)
        }
        with named(self._caller, others, pickling.dumps):
            pickling.dumps(others)

    @property
    def _caller(self) -> str:
        return name_of_call(type(self).__name__)

    def _check_types(self, df: Any) -> None:
        """Refuses columns without numbers, unless a function of the user makes numbers of them."""
        features = self._feature_columns(df.columns)
        used = [*(name for name in features if not self._takes_text(features.index(name))), *self.getLabelCols()]
        if self.getTransformationFn() or self.getDataModule():
            return
        for name in used:
            kind = df.schema[name].dataType.typeName() if name in df.columns else ""
            if kind in _NO_NUMBERS:
                raise ValueError(
                    f"column `{name}` has the type {kind}, and a model takes numbers\n"
                    "hint: Spark's StringIndexer makes an index of a text; a transformation_fn makes numbers of "
                    "anything; feature_cols names the columns to use"
                )

    def _takes_text(self, feature: int) -> bool:
        """True if the model itself makes numbers of the text of this feature."""
        return False

    def _backend(self) -> Backend:
        backend = self.getBackend()
        return backend if backend is not None else self._default_backend()

    def _default_backend(self) -> Backend:
        return SparkBackend(num_proc=self.getNumProc(), verbose=self.getVerbose())

    def _store(self) -> Store:
        store = self.getStore()
        if store is None:
            raise ValueError(
                f"{type(self).__name__} has no store, and fit_on_parquet reads what is there\n{_STORE_HINT}"
            )
        return store

    def _feature_columns(self, columns: Sequence[str]) -> list[str]:
        """The feature columns that the user named, or all but those with another use."""
        given = self.getFeatureCols()
        others = {*self.getLabelCols(), self.getSampleWeightCol(), self.getValidation()}
        return list(given) if given else [name for name in columns if name not in others]

    def _fit_without_store(self, df: Any) -> Any:
        """The rows go to the disks of the ranks' machines, and nothing stays but the model."""
        backend = self._backend()
        run = getattr(backend, "run_with_rows", None)
        module = self.getDataModule()
        for fact, is_so in (
            (f"its backend {type(backend).__name__} has no method run_with_rows", run is None),
            ("run_id names a run in the store", self.getRunId() is not None),
            ("its data_module reads files of a store", module and not issubclass(module, ParquetDataModule)),
        ):
            if is_so:
                raise ValueError(f"{type(self).__name__} has no store, and {fact}\n{_STORE_HINT}")
        columns = dataset.columns_of(self._feature_columns(df.columns), self.getLabelCols(), self.getSampleWeightCol())
        frame = dataset.selected(df, columns, self.getValidation())
        store = LocalStore("nothing-is-written-here", save_runs=False)
        run_id, made = self._new_run_id(), {}

        def start(parts: Sequence[Any], shapes: Mapping[str, Any]) -> Any:
            train_rows, val_rows = (part.total for part in parts)
            dataset.check_rows(train_rows, val_rows if self.getValidation() else None, self.getValidation())
            made.update(dataset.metadata_of(df, shapes))
            task = self._checked_task(
                store, backend.num_processes(), train_rows, val_rows, made, run_id, None, (None, None)
            )
            return train_on_rows, (self._trainer(), task), {}

        assert run is not None
        return self._trained(run(start, frame, env=self._environment()), made, run_id)

    def _fit_on_prepared_data(
        self, backend: Backend, store: Store, train_rows: int, val_rows: int, metadata: Any, dataset_idx: int | None
    ) -> Any:
        run_id = self.getRunId() or self._new_run_id()
        plans = (
            dataset.plan_of(store, store.get_train_data_path(dataset_idx))[0],
            dataset.plan_of(store, store.get_val_data_path(dataset_idx))[0]
            if val_rows and self.getValidation()
            else None,
        )
        size = backend.num_processes()
        task = self._checked_task(store, size, train_rows, val_rows, metadata, run_id, dataset_idx, plans)
        return self._trained(backend.run(self._trainer(), args=(task,), env=self._environment()), metadata, run_id)

    def _new_run_id(self) -> str:
        return f"{self._prefix}_{int(time.time())}_{secrets.token_hex(3)}"

    def _checked_task(
        self,
        store: Store,
        size: int,
        train_rows: int,
        val_rows: int,
        metadata: Any,
        run_id: str,
        dataset_idx: int | None,
        plans: tuple[Plan | None, Plan | None],
    ) -> Task:
        """The task of the ranks. Raises ValueError if the data does not fit the ranks or the model."""
        for kind, rows in (("training", train_rows), ("validation", val_rows)):
            if rows < size and (rows or kind == "training"):
                raise ValueError(
                    f"the data has {counted(rows, f'{kind} row')} for {counted(size, 'rank')}\n"
                    f"hint: num_proc={max(rows, 1)}, or more data"
                )
        features = self._feature_columns(list(metadata))
        edited = {
            name: {"shape": math.prod(shape or ())} for name, _, shape, _ in self.getTransformationEditFields() or ()
        }
        self._check_shapes({**metadata, **edited}, features)
        return self._task(store, size, train_rows, val_rows, features, run_id, dataset_idx, plans)

    def _trained(self, results: list[Any], metadata: Any, run_id: str) -> Any:
        """The model that the ranks have trained."""
        result = results[0]
        if result["failure"]:
            raise RuntimeError(
                f"the training has ended, but its last checkpoint could not be saved: {result['failure']}\n"
                "hint: see that the store can be written from the executors, or create it with save_runs=False"
            )
        for label, values in zip(self.getLabelCols(), result["sizes"], strict=False):
            metadata[label]["output_size"] = values
        return self._model_of(result, metadata, self._feature_columns(list(metadata)), run_id)

    def _task(
        self,
        store: Store,
        size: int,
        train_rows: int,
        val_rows: int,
        features: list[str],
        run_id: str,
        dataset_idx: int | None,
        plans: tuple[Plan | None, Plan | None],
    ) -> Task:
        batch_size = self.getBatchSize()
        val_batch_size = self.getValBatchSize() or batch_size
        steps = math.ceil if self._rounds_up else math.floor
        checkpoint = self._checkpoint(store, run_id)
        if checkpoint is not None:
            tell(
                f"horovod: training starts from the checkpoint of run {run_id} in {store.get_run_path(run_id)}",
                sys.stdout,
            )
        change = None
        if self.getTransformationFn():
            weight = [self.getSampleWeightCol()] if self.getSampleWeightCol() else []
            change = Transformation(
                self.getTransformationFn(),
                self.getTransformationEditFields(),
                self.getTransformationRemovedFields(),
                [*features, *self.getLabelCols(), *weight],
            )
        return Task(
            model=self._model_bytes(),
            store=store.to_remote(run_id, dataset_idx),
            features=features,
            labels=self.getLabelCols(),
            sample_weight=self.getSampleWeightCol(),
            train_plan=plans[0],
            val_plan=plans[1],
            batch_size=batch_size,
            val_batch_size=val_batch_size,
            epochs=self.getEpochs(),
            train_steps=self.getTrainStepsPerEpoch() or max(steps(train_rows / batch_size / size), 1),
            val_steps=self.getValidationStepsPerEpoch() or math.ceil(val_rows / val_batch_size / size),
            verbose=self.getVerbose(),
            seed=self.getRandomSeed(),
            shuffle=self.getShuffle(),
            buffer_rows=self.getShufflingBufferSize(),
            transformation=change,
            readers=(self.getTrainReaderNumWorker(), self.getValReaderNumWorker(), self.getReaderPoolType()),
            in_memory=self.getInMemoryCacheAll(),
            use_gpu=self.getUseGpu(),
            mp_start_method=self.getMpStartMethod(),
            data_module=self.getDataModule(),
            label_shapes=self.getLabelShapes(),
            checkpoint=checkpoint,
            options=self._options(),
        )

    def _checkpoint(self, store: Store, run_id: str) -> bytes | None:
        """The checkpoint of the run in the store; None if there is none."""
        folder = store.get_checkpoint_path(run_id)
        path = f"{folder}/{store.get_checkpoint_filename()}" if folder else ""
        return store.read(path) if path and store.exists(path) else None

    def _environment(self) -> Mapping[str, str] | None:
        """Variables of the ranks, over those of the backend."""
        return None

    @abstractmethod
    def _check_shapes(self, metadata: Any, features: list[str]) -> None:
        """Compares the columns with the model, if its shapes are known."""

    @abstractmethod
    def _model_bytes(self) -> bytes:
        """The model, and what belongs to it, for the ranks."""

    @abstractmethod
    def _options(self) -> Mapping[str, Any]:
        """Parameters of the framework, for the ranks."""

    @abstractmethod
    def _trainer(self) -> Any:
        """The function that a rank calls with its Task; {history, model, failure, sizes} on rank 0."""

    @abstractmethod
    def _model_of(self, result: Mapping[str, Any], metadata: Any, features: list[str], run_id: str) -> Any:
        """The trained model."""


class HorovodModel(Model, ModelParams, HorovodReadable, HorovodWritable):
    """A trained model; `transform` appends its outputs to a DataFrame."""

    _metadata: Any = None

    def transform(self, df: Any, params: Any = None) -> Any:
        """The DataFrame with the columns `outputCols`, one for each label.

        A column has the label's type; integers are rounded. An output of several values is a DenseVector.
        """
        return super().transform(df, params)

    def _extra_to_save(self) -> Any:
        return self._metadata

    def _restore_extra(self, extra: Any) -> None:
        self._metadata = extra
