# SPDX-License-Identifier: Apache-2.0
"""Old import name of the operations and of init, rank, size ...; re-exports only."""

from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.collectives import resolve_op as handle_average_backwards_compatibility
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.tensorflow import ops
from horovod.tensorflow.ops import *  # noqa: F403

__all__ = [
    "ProcessSet",
    "add_process_set",
    "check_num_rank_power_of_2",
    "global_process_set",
    "handle_average_backwards_compatibility",
    "remove_process_set",
]
__all__ += basics.__all__ + ops.__all__
