# SPDX-License-Identifier: Apache-2.0
"""Training data: Parquet files as NumPy batches, an equal share for each rank, and Horovod's data loader classes.

    reader = ParquetReader("s3://bucket/train", batch_size=64, rank=hvd.rank(), size=hvd.size())
    for batch in to_torch(reader):  # an epoch: {column: tensor}
        ...

Needs pyarrow and fsspec (`pip install hvd[spark]`) when a file is read, not before.
"""

from horovod.core.missing import watch
from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader
from horovod.data.parquet import Group, Piece, Plan, plan, shard
from horovod.data.reader import ParquetReader
from horovod.data.to_tensorflow import to_tensorflow
from horovod.data.to_torch import to_torch

__all__ = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
    "Group",
    "ParquetReader",
    "Piece",
    "Plan",
    "plan",
    "shard",
    "to_tensorflow",
    "to_torch",
]

watch(__name__)
