# SPDX-License-Identifier: Apache-2.0
"""PBS and Torque: $PBS_NODEFILE has a line for each process (`mpiprocs`, or Torque's `ppn`), not for each core."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.launcher.allocations.base import Allocation, hosts_of_file

__all__ = ["find"]

_FILE = "PBS_NODEFILE"


def find(environment: Mapping[str, str]) -> Allocation | None:
    """Repeated lines are counted, also if others stand between them; hosts keep the order in which they first stand."""
    filename = environment.get(_FILE)
    if not filename:
        return None
    system = f"PBS job {environment['PBS_JOBID']}" if environment.get("PBS_JOBID") else "PBS"
    return Allocation(system, _FILE, hosts_of_file(filename, _FILE))
