# SPDX-License-Identifier: Apache-2.0
"""Horovod for PyTorch.

Five lines make a training script data-parallel:

    import horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

and `horovodrun -np 4 python train.py` starts it.
"""

from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.exceptions import HorovodInternalError
from horovod.core.joining import join, uneven_data
from horovod.core.missing import watch
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.torch import elastic as elastic
from horovod.torch import functions as functions  # old submodules are attributes
from horovod.torch import mpi_ops as mpi_ops
from horovod.torch import ops
from horovod.torch.compression import Compression
from horovod.torch.hooks import ddp_hook
from horovod.torch.ops import *  # noqa: F403
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.replicas import check_replicas
from horovod.torch.state import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "ProcessSet",
    "SyncBatchNorm",
    "add_process_set",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_replicas",
    "ddp_hook",
    "global_process_set",
    "join",
    "remove_process_set",
    "uneven_data",
]
__all__ += basics.__all__ + ops.__all__

watch(__name__)


def __dir__() -> list[str]:
    return [*__all__, "elastic", "mpi_ops", "functions"]
