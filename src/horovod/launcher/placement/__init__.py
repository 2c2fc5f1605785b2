# SPDX-License-Identifier: Apache-2.0
"""The ways to start an agent on a host: one file for each, and one row here.

The first one that reaches a host is used for it. Which of the remote ones may be is an option (--start-with).
"""

from __future__ import annotations

from horovod.launcher.placement.base import Placement, PlacementOptions
from horovod.launcher.placement.local import LocalPlacement
from horovod.launcher.placement.lsf import LsfPlacement
from horovod.launcher.placement.rsh_agent import RshAgentPlacement
from horovod.launcher.placement.slurm import SlurmPlacement
from horovod.launcher.placement.ssh import SshPlacement

__all__ = ["PLACEMENTS", "Placement", "PlacementOptions", "placement_for"]

PLACEMENTS: tuple[Placement, ...] = (
    LocalPlacement(),
    SshPlacement(),
    SlurmPlacement(),
    LsfPlacement(),
    RshAgentPlacement(),
)


def placement_for(host: str, options: PlacementOptions) -> Placement | None:
    """The first placement that can start an agent on `host`; None if there is no such placement."""
    return next((placement for placement in PLACEMENTS if placement.reaches(host, options)), None)
