# SPDX-License-Identifier: Apache-2.0
"""The hosts that a batch system has given to this job: one file for each system, and one row here.

An allocation says where ranks run; how an agent gets there is a placement's business (launcher/placement).
"""

from __future__ import annotations

from collections.abc import Mapping

from horovod.launcher.allocations import kubernetes, lsf, pbs, slurm
from horovod.launcher.allocations.base import Allocation, Find

__all__ = ["FINDERS", "Allocation", "find_allocation"]

# The first one that finds an allocation counts.
FINDERS: tuple[Find, ...] = (slurm.find, lsf.find, pbs.find, kubernetes.find)


def find_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation that this environment tells of; None outside of batch systems.

    Raises HostsError if it tells of one that cannot be read.
    """
    return next((found for find in FINDERS if (found := find(environment)) is not None), None)
