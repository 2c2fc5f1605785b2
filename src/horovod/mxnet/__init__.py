# SPDX-License-Identifier: Apache-2.0
"""Horovod for MXNet 1.9: Gluon and Module.

    import horovod.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01 * hvd.size()})

or, with Module,

    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.01 * hvd.size()))

and `horovodrun -np 4 python train.py` starts it.
"""

from horovod.common.util import check_extension, split_list
from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.exceptions import HorovodInternalError
from horovod.core.missing import watch
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set
from horovod.mxnet import compression as compression  # old submodules are attributes
from horovod.mxnet import elastic as elastic
from horovod.mxnet import functions as functions
from horovod.mxnet import mpi_ops as mpi_ops
from horovod.mxnet import ops, shim
from horovod.mxnet.compression import Compression
from horovod.mxnet.ops import *  # noqa: F403
from horovod.mxnet.optimizer import DistributedOptimizer
from horovod.mxnet.replicas import check_replicas
from horovod.mxnet.state import allgather_object, broadcast_object, broadcast_parameters
from horovod.mxnet.trainer import DistributedTrainer

shim.library()  # so that an MXNet which does not fit is an error of the import

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "check_extension",
    "check_replicas",
    "global_process_set",
    "split_list",
]
__all__ += basics.__all__ + ops.__all__

watch(__name__)


def __dir__() -> list[str]:
    return [*__all__, "compression", "elastic", "functions", "mpi_ops"]
