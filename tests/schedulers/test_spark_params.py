# SPDX-License-Identifier: Apache-2.0
"""The parameters of estimators: every name, default, setter and getter of Horovod's. Starts no JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="not run: pyspark is not installed")

DEFAULTS: dict[str, Any] = {
    "num_proc": None,
    "model": None,
    "backend": None,
    "store": None,
    "optimizer": None,
    "loss": None,
    "loss_weights": None,
    "sample_weight_col": None,
    "metrics": [],
    "feature_cols": None,
    "label_cols": None,
    "continuous_cols": None,
    "categorical_cols": None,
    "validation": None,
    "gradient_compression": None,
    "compress_sparse_cols": False,
    "batch_size": 32,
    "val_batch_size": None,
    "epochs": 1,
    "verbose": 1,
    "callbacks": [],
    "random_seed": None,
    "shuffle_buffer_size": None,
    "shuffle": True,
    "partitions_per_process": 10,
    "run_id": None,
    "train_steps_per_epoch": None,
    "validation_steps_per_epoch": None,
    "transformation_fn": None,
    "transformation_edit_fields": None,
    "transformation_removed_fields": None,
    "train_reader_num_workers": 2,
    "val_reader_num_workers": 2,
    "reader_pool_type": "thread",
    "label_shapes": None,
    "inmemory_cache_all": False,
    "use_gpu": True,
    "mp_start_method": None,
    "backward_passes_per_step": 1,
    "tensorflow_dataset_prefetch_buffer_size": 0,
}
OF_TORCH = {"data_module": None, "input_shapes": None, "loss_constructors": None, "train_minibatch_fn": None}
UNUSUAL = {
    "shuffle_buffer_size": "ShufflingBufferSize",
    "train_reader_num_workers": "TrainReaderNumWorker",
    "val_reader_num_workers": "ValReaderNumWorker",
    "inmemory_cache_all": "InMemoryCacheAll",
}


def title(name: str) -> str:
    return UNUSUAL.get(name) or "".join(part.capitalize() for part in name.split("_"))


def test_torch() -> None:
    from horovod.spark.torch import TorchEstimator

    e = TorchEstimator(batch_size=3)
    for name, value in {**DEFAULTS, **OF_TORCH}.items():
        if name != "batch_size":
            assert e.getOrDefault(name) == value == getattr(e, "get" + title(name))()
            assert hasattr(e, "set" + title(name))
    assert json and Path
