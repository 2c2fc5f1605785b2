# SPDX-License-Identifier: Apache-2.0
"""Old import name of the process sets; re-exports only."""

from horovod.common.basics import MPI, HorovodBasics
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["MPI", "HorovodBasics", "ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
