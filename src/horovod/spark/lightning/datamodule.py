# SPDX-License-Identifier: Apache-2.0
"""The data module of TorchEstimator on Lightning: batches are {column: tensor}, an epoch is a number of them."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.spark.common.training import Transformation
from horovod.spark.torch.datamodule import ParquetTorchDataModule
from horovod.torch.lightning import package

__all__ = ["PetastormDataModule", "module_of"]


class _Loader(BaseDataLoader):
    """Yields `steps` batches an epoch. `begin` starts again for each epoch, unless `goes_on`."""

    def __init__(self, begin: Callable[[], Iterator[Any]], steps: int, goes_on: bool, prepare: Any) -> None:
        self._begin, self._steps, self._prepare = begin, steps, prepare
        self._endless = begin() if goes_on else None

    def __len__(self) -> int:
        return self._steps

    def _iterate(self) -> Iterator[Any]:
        yield from itertools.islice(self._begin() if self._endless is None else self._endless, self._steps)

    def _process_batch(self, batch: Any) -> Any:
        return self._prepare(batch) if self._prepare else batch


class _AsyncLoader(AsyncDataLoaderMixin, _Loader):
    """_Loader on a background thread."""


class _DataModule:
    """Mixed in before Lightning's LightningDataModule. The keywords are Horovod's, and those of ParquetTorchDataModule.

    `num_reader_epochs`: how often the rows are read for the training; None: without an end. `prepare_batch` changes
    each batch.
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
        num_reader_epochs: int | None = None,
        reader_pool_type: str = "thread",
        reader_worker_count: int = 2,
        transformation: Callable[[Any], Any] | None = None,
        transformation_edit_fields: Sequence[Any] | None = None,
        transformation_removed_fields: Sequence[str] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: bool = True,
        debug_data_loader: bool = False,
        train_async_data_loader_queue_size: int | None = None,
        val_async_data_loader_queue_size: int | None = None,
        seed: int | None = None,
        prepare_batch: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if transformation is not None and not isinstance(transformation, Transformation):
            transformation = Transformation(transformation, transformation_edit_fields, transformation_removed_fields)
        own: dict[str, Any] = {
            "train_dir": train_dir,
            "val_dir": val_dir,
            "num_train_epochs": num_train_epochs,
            "has_val": has_val,
            "train_batch_size": train_batch_size,
            "val_batch_size": val_batch_size,
            "shuffle": shuffle,
            "transform_fn": transformation,
            "inmemory_cache_all": inmemory_cache_all,
            "cur_shard": cur_shard,
            "shard_count": shard_count,
            "schema_fields": schema_fields,
            "storage_options": storage_options,
            "verbose": verbose,
            "reader_pool_type": reader_pool_type,
            "train_reader_worker_count": reader_worker_count,
            "val_reader_worker_count": reader_worker_count,
            "random_seed": seed,
        }
        self._rows = ParquetTorchDataModule(**{**own, **kwargs})
        self._has_val, self._reader_epochs, self._prepare = has_val, num_reader_epochs, prepare_batch
        self._steps = (steps_per_epoch_train, steps_per_epoch_val)
        self._queues = (train_async_data_loader_queue_size, val_async_data_loader_queue_size)
        self._debug = debug_data_loader
        self._loaders: list[Any] = []

    def setup(self, stage: str | None = None) -> None:
        """Opens the files."""
        if self._rows.train is None:
            self._rows.__enter__()

    def teardown(self, stage: str | None = None) -> None:
        """Ends the threads and closes the files."""
        for loader in self._loaders:
            if isinstance(loader, _AsyncLoader):
                loader.close_async_loader()
        self._loaders.clear()
        if self._rows.train is not None:
            self._rows.__exit__(None, None, None)
            self._rows.train = self._rows.val = None

    def train_dataloader(self) -> Any:
        """Each epoch goes on in the rows where the last one ended."""
        return self._loader(0, self._train_batches, True)

    def val_dataloader(self) -> Any:
        """The validation rows from the first one on."""
        return self._loader(1, self._rows.val_data, False) if self._has_val else []

    def _train_batches(self) -> Iterator[Any]:
        if self._reader_epochs is None:
            yield from self._rows.train_data()
            return
        steps = len(self._rows.train) if self._rows.train is not None else 0
        yield from itertools.islice(self._rows.train_data(), self._reader_epochs * steps)

    def _loader(self, which: int, begin: Callable[[], Iterator[Any]], goes_on: bool) -> Any:
        given = (begin, self._steps[which], goes_on, self._prepare)
        size = self._queues[which]
        loader = _AsyncLoader(size, self._debug, *given) if size else _Loader(*given)
        self._loaders.append(loader)
        return loader


@functools.cache
def module_of(lightning: str) -> Any:
    """The class PetastormDataModule for a Lightning, by its import name."""
    base = importlib.import_module(lightning).LightningDataModule
    return type("PetastormDataModule", (_DataModule, base), {"__module__": __name__, "__doc__": _DataModule.__doc__})


PetastormDataModule = module_of(package())  # Horovod's name; Petastorm itself is not used
