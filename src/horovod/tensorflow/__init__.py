# SPDX-License-Identifier: Apache-2.0
"""Horovod for TensorFlow 2, and for graphs of TensorFlow 1.

    import horovod.tensorflow as hvd

    hvd.init()
    with tf.GradientTape() as tape:
        ...
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    hvd.broadcast_variables(variables, root_rank=0)      # after the first step, when all of them exist

and `horovodrun -np 4 python train.py` starts it. With Keras: horovod.tensorflow.keras or horovod.keras.
"""

import contextlib

from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.collectives import resolve_op as handle_average_backwards_compatibility
from horovod.core.missing import watch
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.tensorflow import elastic as elastic
from horovod.tensorflow import functions as functions  # old submodules are attributes
from horovod.tensorflow import gradient_aggregation_eager as gradient_aggregation_eager
from horovod.tensorflow import mpi_ops as mpi_ops
from horovod.tensorflow import ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.ops import *  # noqa: F403
from horovod.tensorflow.optimizer import DistributedOptimizer
from horovod.tensorflow.replicas import check_replicas
from horovod.tensorflow.shim import follow_init
from horovod.tensorflow.state import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from horovod.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from horovod.tensorflow.util import refs_to_vars, vars_to_refs

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "check_replicas",
    "global_process_set",
    "handle_average_backwards_compatibility",
    "refs_to_vars",
    "remove_process_set",
    "vars_to_refs",
]
__all__ += basics.__all__ + ops.__all__

watch(__name__)

with contextlib.suppress(ImportError):  # the first operation raises it again
    follow_init()


def __dir__() -> list[str]:
    return [*__all__, "elastic", "mpi_ops", "functions", "gradient_aggregation_eager"]
