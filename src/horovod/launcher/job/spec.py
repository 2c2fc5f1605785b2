# SPDX-License-Identifier: Apache-2.0
"""The job to run: the command line after all checks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.launcher.job.policy import EndPolicy, EndTheJob
from horovod.launcher.options.hosts import RankIdentity
from horovod.launcher.placement import PlacementOptions

if TYPE_CHECKING:  # other jobs start without them, and so earlier
    from horovod.elastic.decide.job import Rules
    from horovod.elastic.drive.discovery import HostDiscovery, Hosts
    from horovod.elastic.drive.driver import Limits

__all__ = ["OF_THIS_MACHINE", "ElasticPlan", "Job"]

# Variables that say where a process is, and whose: each machine has its own values. Slurm gives each node its GPUs.
OF_THIS_MACHINE = {
    "CUDA_VISIBLE_DEVICES",
    "DISPLAY",
    "HOME",
    "HOSTNAME",
    "LOGNAME",
    "OLDPWD",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "USER",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
}


@dataclasses.dataclass(frozen=True)
class ElasticPlan:
    """The plan of an elastic job, in place of ranks. `hosts`: all that there are, unless there is a `discovery`."""

    rules: Rules
    limits: Limits
    hosts: Hosts = ()
    discovery: HostDiscovery | None = None
    discovery_s: float = 1.0


@dataclasses.dataclass(frozen=True)
class Job:
    command: list[str]
    ranks: list[RankIdentity]  # none in an elastic job
    directory: str  # in which the ranks start, on every host
    environment: dict[str, str]  # what the ranks get besides their identity
    assigned: dict[str, str] = dataclasses.field(default_factory=dict)  # in front of the command, for all hosts
    policy: EndPolicy = dataclasses.field(default_factory=EndTheJob)
    placement: PlacementOptions = dataclasses.field(default_factory=PlacementOptions)
    start_timeout_s: float = 30.0  # how long a host may take until its agent is ready
    termination_grace_s: float = 3.0
    frozen_timeout_s: float = 3.0  # how long a rank may be stopped by a signal; 0: for ever
    agent_timeout_s: float = 5.0  # how long an agent may be silent; 0: for ever
    network_interface: str = ""
    output_directory: Path | None = None
    verbose: bool = False
    prefix_timestamp: bool = False  # in front of each line of output
    prefix: bool = True  # rank and stream in front of each line of output
    only_rank: int | None = None  # whose output alone is shown
    notes: tuple[str, ...] = ()  # what --verbose says first
    elastic: ElasticPlan | None = None
