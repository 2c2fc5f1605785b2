# SPDX-License-Identifier: Apache-2.0
"""Data modules of KerasEstimator: batches are what `fit` takes, (inputs, labels) or (inputs, labels, weights)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from horovod.data import to_tensorflow
from horovod.spark.common.datamodule import ParquetDataModule

__all__ = ["ParquetKerasDataModule", "PetastormDataModule"]


class ParquetKerasDataModule(ParquetDataModule):
    """The default: Parquet files, read by horovod.data.

    With the backend TensorFlow a batch comes from a tf.data.Dataset, else from a generator. `make_dataset` turns
    {column: array} into what `fit` takes.
    """

    def __init__(
        self,
        make_dataset: Callable[[Any], Any] | None = None,
        tensorflow_dataset_prefetch_buffer_size: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._make = make_dataset or (lambda batch: batch)
        self._prefetch = tensorflow_dataset_prefetch_buffer_size

    def _as_data(self, batches: Any) -> Any:
        if keras.backend.backend() == "tensorflow":
            return to_tensorflow(batches, self._make, self._prefetch)
        return (self._make(batch) for batch in batches)  # of iterators, Keras takes generators alone

    def train_data(self) -> Any:
        """Batches of epoch after epoch, without an end."""
        return self._as_data(super().train_data())

    def val_data(self) -> Any:
        """Validation batches of epoch after epoch, without an end; None without any."""
        return self._as_data(self.val.endless()) if self.val is not None else None


PetastormDataModule = ParquetKerasDataModule  # Horovod's name; Petastorm itself is not used
