# SPDX-License-Identifier: Apache-2.0
"""Horovod for tf.keras: Keras 3, or tf-keras if TF_USE_LEGACY_KERAS=1 is set.

In a script:

    import horovod.tensorflow.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001 * hvd.size())), ...)
    x, y = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]  # each rank has its share
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.util import is_version_greater_equal_than
from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.compression import Compressor
from horovod.core.missing import watch
from horovod.core.native import Average, Sum
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.gradients.options import ReductionOptions
from horovod.keras import ops
from horovod.keras.ops import *  # noqa: F403
from horovod.keras.optimizer import distributed as distributed  # for horovod.tensorflow's own wrapper
from horovod.keras.replicas import check_replicas
from horovod.keras.state import load_with
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras import callbacks
from horovod.tensorflow.keras import elastic as elastic
from horovod.tensorflow.state import broadcast_global_variables

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "broadcast_global_variables",
    "callbacks",
    "check_replicas",
    "global_process_set",
    "is_version_greater_equal_than",
    "load_model",
    "remove_process_set",
]
__all__ += basics.__all__ + ops.__all__

watch(__name__)


def __dir__() -> list[str]:
    return [*__all__, "elastic"]


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes a Keras optimizer average gradients over the ranks before it applies them, and returns it.

    Its slots and iterations stay.

    backward_passes_per_step: gradients of so many passes are summed (averaged with average_aggregated_gradients) before
    they are reduced and applied; other passes apply nothing. groups: a number of groups, or lists of variables, whose
    gradients are reduced as one; num_groups is its old name.
    """
    return distributed(optimizer, ReductionOptions.among(locals()))


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """tf.keras.models.load_model, with the model's optimizer distributed and its state kept.

    custom_optimizers: classes beside Keras' own that the file may name. legacy_opts is accepted for old scripts.
    """
    return load_with(tf.keras, filepath, custom_optimizers, custom_objects, compression)
