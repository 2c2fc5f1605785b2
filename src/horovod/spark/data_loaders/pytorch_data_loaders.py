# SPDX-License-Identifier: Apache-2.0
"""PyTorch data loaders with Horovod's names: batches of a ParquetReader as {column: tensor}.

The reader takes the loader's batch size. An Async loader works on a background thread; `close_async_loader` ends it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

from horovod.core.wording import tell
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader, ParquetReader, to_torch

__all__ = [
    "PytorchAsyncDataLoader",
    "PytorchDataLoader",
    "PytorchInfiniteAsyncDataLoader",
    "PytorchInfiniteDataLoader",
    "PytorchInmemAsyncDataLoader",
    "PytorchInmemDataLoader",
]


class PytorchDataLoader(BaseDataLoader):
    """The batches of an epoch, at most `limit_step_per_epoch` of them unless it is -1.

    Rows are shuffled in a pool of `shuffling_queue_capacity`; with 0 they keep their order.
    """

    def __init__(
        self,
        reader: ParquetReader,
        batch_size: int,
        shuffling_queue_capacity: int,
        name: str = "",
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.reader = reader
        self.batch_size = reader.batch_size = batch_size
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.limit_step_per_epoch = limit_step_per_epoch
        self.name = name
        self.verbose = verbose
        reader.shuffle = shuffling_queue_capacity > 0
        reader.buffer_rows = max(shuffling_queue_capacity, 1)

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        whole = len(self.reader)
        return whole if self.limit_step_per_epoch < 0 else min(self.limit_step_per_epoch, whole)

    def _iterate(self) -> Iterator[Any]:
        limit = None if self.limit_step_per_epoch < 0 else self.limit_step_per_epoch
        yield from to_torch(itertools.islice(self.reader, limit))
        if self.verbose:
            tell(f"horovod: {self.name or type(self).__name__} has read an epoch of {len(self)} batches", sys.stdout)


class PytorchAsyncDataLoader(AsyncDataLoaderMixin, PytorchDataLoader):
    """PytorchDataLoader on a background thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class PytorchInfiniteDataLoader(PytorchDataLoader):
    """Epochs of exactly `limit_step_per_epoch` batches: each goes on in the data where the last one ended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.limit_step_per_epoch < 1:
            raise ValueError(f"limit_step_per_epoch is {self.limit_step_per_epoch}: expected at least 1")
        self._endless: Iterator[Any] | None = None

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self.limit_step_per_epoch

    def _iterate(self) -> Iterator[Any]:
        if self._endless is None:
            self._endless = to_torch(self.reader.endless())
        yield from itertools.islice(self._endless, self.limit_step_per_epoch)


class PytorchInfiniteAsyncDataLoader(AsyncDataLoaderMixin, PytorchInfiniteDataLoader):
    """PytorchInfiniteDataLoader on a background thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class PytorchInmemDataLoader(BaseDataLoader):
    """Reads the rank's rows once and keeps them in memory; `num_epochs` epochs of `limit_step_per_epoch` batches.

    With `shuffle`, the rows of each epoch come in another order.
    """

    def __init__(
        self,
        reader: ParquetReader,
        batch_size: int,
        num_epochs: int,
        name: str = "",
        shuffle: bool = False,
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        import torch

        if limit_step_per_epoch < 1:
            raise ValueError(f"limit_step_per_epoch is {limit_step_per_epoch}: expected at least 1")
        self.batch_size, self.num_epochs, self.name = batch_size, num_epochs, name
        self.shuffle, self.limit_step_per_epoch, self.verbose = shuffle, limit_step_per_epoch, verbose
        batches = list(to_torch(reader))
        reader.close()
        self._columns = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        self._rows = reader.rows
        self._epoch = 0

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self.limit_step_per_epoch

    def _iterate(self) -> Iterator[Any]:
        import torch

        if self._epoch == self.num_epochs:
            raise RuntimeError(f"{self.name or type(self).__name__}: {self.num_epochs} epochs were read (num_epochs)")
        self._epoch += 1
        order = torch.randperm(self._rows) if self.shuffle else torch.arange(self._rows)
        starts = itertools.cycle(range(0, self._rows, self.batch_size))
        for start in itertools.islice(starts, self.limit_step_per_epoch):
            rows = order[start : start + self.batch_size]
            yield {name: values[rows] for name, values in self._columns.items()}


class PytorchInmemAsyncDataLoader(AsyncDataLoaderMixin, PytorchInmemDataLoader):
    """PytorchInmemDataLoader on a background thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
