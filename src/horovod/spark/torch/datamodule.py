# SPDX-License-Identifier: Apache-2.0
"""Data modules of TorchEstimator: batches are {column: tensor}."""

from __future__ import annotations

from typing import Any

from horovod.data import to_torch
from horovod.spark.common.datamodule import ParquetDataModule

__all__ = ["ParquetTorchDataModule", "PetastormDataModule"]


class ParquetTorchDataModule(ParquetDataModule):
    """The default: Parquet files, read by horovod.data."""

    def __init__(
        self,
        reader_pool_type: str = "thread",
        train_reader_worker_count: int = 10,
        val_reader_worker_count: int = 10,
        random_seed: int | None = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(reader_pool_type, train_reader_worker_count, val_reader_worker_count, random_seed, **kwargs)

    def train_data(self) -> Any:
        """Batches of epoch after epoch, without an end."""
        return to_torch(super().train_data())

    def val_data(self) -> Any:
        """The validation batches of one epoch."""
        return to_torch(super().val_data())


PetastormDataModule = ParquetTorchDataModule  # Horovod's name; Petastorm itself is not used
