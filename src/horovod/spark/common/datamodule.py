# SPDX-License-Identifier: Apache-2.0
"""Data modules: how a rank reads the training and validation data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.data import ParquetReader, Plan

__all__ = ["DataModule", "ParquetDataModule"]


class DataModule(ABC):
    """The data of a rank; a context manager. A subclass defines `train_data` and `val_data`.

    An estimator makes one in each rank, with these keywords: the folders, the sizes of batches, the rank's shard of
    `shard_count`, the columns in `schema_fields`, the number of batches of an epoch, and more.
    """

    def __init__(
        self,
        train_dir: str,
        val_dir: str,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        transform_fn: Callable[[Any], Any] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: bool = True,
        **kwargs: Any,
    ) -> None:
        self.train_dir, self.val_dir = train_dir, val_dir
        self.num_train_epochs, self.has_val = num_train_epochs, has_val
        self.train_batch_size, self.val_batch_size = train_batch_size, val_batch_size
        self.shuffle, self.transform_fn, self.inmemory_cache_all = shuffle, transform_fn, inmemory_cache_all
        self.cur_shard, self.shard_count = cur_shard, shard_count
        self.schema_fields, self.storage_options = schema_fields, storage_options
        self.steps_per_epoch_train, self.steps_per_epoch_val = steps_per_epoch_train, steps_per_epoch_val
        self.verbose = verbose
        self.kwargs = kwargs

    def __enter__(self) -> DataModule:
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:  # the names are Horovod's
        return None

    @abstractmethod
    def train_data(self) -> Any:
        """The training batches: those of each epoch, or of epochs without an end."""

    @abstractmethod
    def val_data(self) -> Any:
        """The validation batches."""


class ParquetDataModule(DataModule):
    """Reads with ParquetReader; the default of all estimators. `train` and `val` are the readers while it is open.

    `reader_pool_type` is accepted for Horovod's scripts; threads read in any case. `train_plan` and `val_plan` spare
    the ranks the footers.
    """

    def __init__(
        self,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 2,
        val_reader_worker_count: int = 2,
        random_seed: int | None = 0,
        train_plan: Plan | None = None,
        val_plan: Plan | None = None,
        buffer_rows: int | None = None,
        drop_last: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if reader_pool_type not in ("thread", "process", "dummy"):
            raise ValueError(f"reader_pool_type is {reader_pool_type!r}: expected 'thread', 'process' or 'dummy'")
        self._threads = (train_reader_worker_count, val_reader_worker_count)
        self._seed = random_seed or 0
        self._plans = (train_plan, val_plan)
        self._buffer_rows = buffer_rows
        self._drop_last = drop_last
        self.train: ParquetReader | None = None
        self.val: ParquetReader | None = None

    def __enter__(self) -> ParquetDataModule:
        self.train = self._reader(0, self.train_dir, self.train_batch_size, self.shuffle)
        # An epoch of fewer rows than a batch is one short batch.
        self.train.drop_last = self._drop_last and self.train.rows >= self.train_batch_size
        if self.has_val:
            self.val = self._reader(1, self.val_dir, self.val_batch_size, False)
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        for reader in (self.train, self.val):
            if reader is not None:
                reader.close()

    def _reader(self, which: int, path: str, batch_size: int, shuffle: bool) -> ParquetReader:
        return ParquetReader(
            self._plans[which] or path,
            columns=self.schema_fields,
            batch_size=batch_size,
            rank=self.cur_shard,
            size=self.shard_count,
            shuffle=shuffle,
            seed=self._seed,
            buffer_rows=self._buffer_rows if shuffle else None,
            threads=max(self._threads[which] or 1, 1),
            cache="memory" if self.inmemory_cache_all else None,
            transform=self.transform_fn,
            storage_options=self.storage_options,
        )

    def train_data(self) -> Any:
        """Batches of epoch after epoch, {column: array}, without an end."""
        assert self.train is not None, "use the data module as a context manager"
        return self.train.endless()

    def val_data(self) -> Any:
        """The validation batches of one epoch."""
        assert self.val is not None, "there is no validation data, or the data module is not open"
        return iter(self.val)
