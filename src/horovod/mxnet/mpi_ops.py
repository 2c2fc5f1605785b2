# SPDX-License-Identifier: Apache-2.0
"""Old import name of the operations and of init, rank, size ...; re-exports only."""

from horovod.common.util import check_installed_version, get_average_backwards_compatibility_fun, get_ext_suffix
from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.collectives import resolve_op as handle_average_backwards_compatibility
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set
from horovod.mxnet import ops
from horovod.mxnet.ops import *  # noqa: F403

__all__ = [
    "ProcessSet",
    "add_process_set",
    "check_installed_version",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "global_process_set",
    "handle_average_backwards_compatibility",
]
__all__ += basics.__all__ + ops.__all__
