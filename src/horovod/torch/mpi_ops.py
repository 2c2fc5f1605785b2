# SPDX-License-Identifier: Apache-2.0
"""Old import name of the operations and of init, rank, size ...; re-exports only."""

from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.collectives import resolve_op as handle_average_backwards_compatibility
from horovod.core.exceptions import HorovodInternalError
from horovod.core.joining import join
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.torch import ops
from horovod.torch.autograd import Allgather as HorovodAllgather
from horovod.torch.autograd import Allreduce as HorovodAllreduce
from horovod.torch.autograd import Alltoall as HorovodAlltoall
from horovod.torch.autograd import Broadcast as HorovodBroadcast
from horovod.torch.autograd import GroupedAllgather as HorovodGroupedAllgather
from horovod.torch.autograd import GroupedAllreduce as HorovodGroupedAllreduce
from horovod.torch.autograd import GroupedReducescatter as HorovodGroupedReducescatter
from horovod.torch.autograd import Reducescatter as HorovodReducescatter
from horovod.torch.compression import Compression
from horovod.torch.ops import *  # noqa: F403

__all__ = [
    "Compression",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodInternalError",
    "HorovodReducescatter",
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "handle_average_backwards_compatibility",
    "join",
    "remove_process_set",
]
__all__ += basics.__all__ + ops.__all__
