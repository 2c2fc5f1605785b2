# SPDX-License-Identifier: Apache-2.0
"""Data modules of TorchEstimator: batches are {column: tensor}."""

from __future__ import annotations

from typing import Any

from horovod.data import to_torch
from horovod.spark.common.datamodule import DataModule, ParquetDataModule

__all__ = ["NVTabularDataModule", "ParquetTorchDataModule", "PetastormDataModule"]


class ParquetTorchDataModule(ParquetDataModule):
    """The default: Parquet files, read by horovod.data."""

    def train_data(self) -> Any:
        """Batches of epoch after epoch, without an end."""
        return to_torch(super().train_data())

    def val_data(self) -> Any:
        """The validation batches of one epoch."""
        return to_torch(super().val_data())


PetastormDataModule = ParquetTorchDataModule  # Horovod's name; Petastorm itself is not used


class NVTabularDataModule(DataModule):
    """Reads with NVTabular, which needs a GPU and the package `nvtabular`."""

    def __init__(
        self, label_cols: Any = (), categorical_cols: Any = (), continuous_cols: Any = (), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.label_cols, self.categorical_cols, self.continuous_cols = label_cols, categorical_cols, continuous_cols

    @staticmethod
    def seed_fn() -> int:
        """A seed for NVTabular's shuffling, equal on all ranks."""
        import horovod.torch as hvd

        return int(hvd.broadcast_object(__import__("random").randrange(2**31), root_rank=0))

    def _loader(self, path: str, batch_size: int) -> Any:
        from nvtabular import Dataset  # type: ignore[import-not-found]
        from nvtabular.loader.torch import TorchAsyncItr  # type: ignore[import-not-found]

        return TorchAsyncItr(
            Dataset(path, engine="parquet"),
            batch_size=batch_size,
            cats=list(self.categorical_cols),
            conts=list(self.continuous_cols),
            labels=list(self.label_cols),
            shuffle=self.shuffle,
            global_size=self.shard_count,
            global_rank=self.cur_shard,
            seed_fn=self.seed_fn,
        )

    def train_data(self) -> Any:
        """The loader of the training data."""
        return self._loader(self.train_dir, self.train_batch_size)

    def val_data(self) -> Any:
        """The loader of the validation data; None without any."""
        return self._loader(self.val_dir, self.val_batch_size) if self.has_val else None
