# SPDX-License-Identifier: Apache-2.0
# For editors and type checkers: __init__.py loads these names when they are first used, which only a stub can show.
# tests/unit/core/test_types.py compares the two.
from horovod.core.arrays import operations as _operations
from horovod.core.basics import *  # noqa: F403
from horovod.core.exceptions import HorovodInternalError as HorovodInternalError
from horovod.core.joining import join as join
from horovod.core.joining import uneven_data as uneven_data
from horovod.core.native import Adasum as Adasum
from horovod.core.native import Average as Average
from horovod.core.native import BitAnd as BitAnd
from horovod.core.native import BitOr as BitOr
from horovod.core.native import BitXor as BitXor
from horovod.core.native import Max as Max
from horovod.core.native import Min as Min
from horovod.core.native import Product as Product
from horovod.core.native import Sum as Sum
from horovod.core.objects import allgather_object as allgather_object
from horovod.core.objects import broadcast_object as broadcast_object
from horovod.core.operations import poll as poll
from horovod.core.operations import synchronize as synchronize
from horovod.core.process_sets import ProcessSet as ProcessSet
from horovod.core.process_sets import add_process_set as add_process_set
from horovod.core.process_sets import global_process_set as global_process_set
from horovod.core.process_sets import remove_process_set as remove_process_set

allreduce = _operations.allreduce
allreduce_async = _operations.allreduce_async
allreduce_ = _operations.allreduce_
allreduce_async_ = _operations.allreduce_async_
grouped_allreduce = _operations.grouped_allreduce
grouped_allreduce_async = _operations.grouped_allreduce_async
grouped_allreduce_ = _operations.grouped_allreduce_
grouped_allreduce_async_ = _operations.grouped_allreduce_async_
allgather = _operations.allgather
allgather_async = _operations.allgather_async
grouped_allgather = _operations.grouped_allgather
grouped_allgather_async = _operations.grouped_allgather_async
alltoall = _operations.alltoall
alltoall_async = _operations.alltoall_async
reducescatter = _operations.reducescatter
reducescatter_async = _operations.reducescatter_async
grouped_reducescatter = _operations.grouped_reducescatter
grouped_reducescatter_async = _operations.grouped_reducescatter_async
broadcast = _operations.broadcast
broadcast_async = _operations.broadcast_async
broadcast_ = _operations.broadcast_
broadcast_async_ = _operations.broadcast_async_
barrier = _operations.barrier
send = _operations.send
send_async = _operations.send_async
recv = _operations.recv
recv_async = _operations.recv_async
