# SPDX-License-Identifier: Apache-2.0
"""Horovod for Keras 3, with its backends TensorFlow, PyTorch and JAX.

    import horovod.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size())), ...)
    x, y = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]  # each rank has its share
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

and `horovodrun -np 4 python train.py` starts it.
"""

from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.missing import watch
from horovod.core.native import Adasum, Average, Sum
from horovod.core.process_sets import global_process_set
from horovod.keras import callbacks, ops
from horovod.keras import elastic as elastic
from horovod.keras.compression import Compression
from horovod.keras.ops import *  # noqa: F403
from horovod.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from horovod.keras.replicas import check_replicas
from horovod.keras.state import broadcast_global_variables, load_model

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "broadcast_global_variables",
    "callbacks",
    "check_replicas",
    "global_process_set",
    "load_model",
]
__all__ += basics.__all__ + ops.__all__

watch(__name__)


def __dir__() -> list[str]:
    return [*__all__, "elastic"]
