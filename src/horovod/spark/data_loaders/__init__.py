# SPDX-License-Identifier: Apache-2.0
"""Horovod's PyTorch data loaders over Parquet data."""

from horovod.core.missing import watch
from horovod.spark.data_loaders.pytorch_data_loaders import PytorchAsyncDataLoader, PytorchDataLoader

__all__ = ["PytorchAsyncDataLoader", "PytorchDataLoader"]

watch(__name__)
