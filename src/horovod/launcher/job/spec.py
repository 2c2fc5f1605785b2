# SPDX-License-Identifier: Apache-2.0
"""The job to run: the command line after all checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.launcher.job.policy import EndPolicy, EndTheJob
from horovod.launcher.options.hosts import RankIdentity
from horovod.launcher.placement import Placement, PlacementOptions, placement_for

if TYPE_CHECKING:  # other jobs start without them, and so earlier
    from horovod.elastic.decide.job import Rules
    from horovod.elastic.drive.discovery import HostDiscovery, Hosts
    from horovod.elastic.drive.driver import Limits

__all__ = ["OF_THIS_MACHINE", "ElasticPlan", "Job", "Joined", "Terms"]

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
class Terms:
    """The names of a job's parts and limits in hints: horovodrun's by default. Other callers have other names."""

    hosts: str = "hosts"
    start_timeout: str = "--start-timeout"  # of the hosts
    init_timeout: str = "--start-timeout"  # of the ranks
    interface: str = "--network-interface"
    program: str = "the job's programs must be on all hosts: a shared folder, or an equal installation"


@dataclasses.dataclass(frozen=True)
class ElasticPlan:
    """The part of an elastic job that replaces the ranks. `hosts`: all there are, unless `discovery` finds them."""

    rules: Rules
    limits: Limits
    hosts: Hosts = ()
    discovery: HostDiscovery | None = None
    discovery_s: float = 1.0


@dataclasses.dataclass(frozen=True)
class Joined:
    """The part of a job whose agents come by themselves (placement/joined.py), several of them on one host perhaps.

    Its ranks have the environment, the folder and the Python of their agent. `agents`: by rank, the agent that holds
    it, as people call it. `environments`: by agent, what its rank gets besides the job's environment.
    """

    placement: Placement
    agents: tuple[str, ...]
    environments: Mapping[str, Mapping[str, str]]


@dataclasses.dataclass(frozen=True)
class Job:
    command: list[str]  # of joined agents: a Python or "" for the agent's own, a module of ours, and its arguments
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
    report: Path | None = None  # its folder
    verbose: bool = False
    prefix_timestamp: bool = False  # in front of each line of output
    prefix: bool = True  # rank and stream in front of each line of output
    only_rank: int | None = None  # whose output alone is shown
    summary: bool | None = None  # at the end; None: if the job has run for more than a minute
    top: bool = False  # show the ranks while the job runs
    notes: tuple[str, ...] = ()  # what --verbose says first
    elastic: ElasticPlan | None = None
    joined: Joined | None = None
    terms: Terms = Terms()

    def placement_for(self, agent: str) -> Placement | None:
        """The way to this agent, which has the name of its host unless agents come by themselves."""
        return self.joined.placement if self.joined is not None else placement_for(agent, self.placement)

    def agent_of(self, rank: int) -> str:
        return self.joined.agents[rank] if self.joined is not None else self.ranks[rank].hostname

    def called(self, agent: str) -> str:
        """In texts."""
        return f"host {agent}" if self.joined is None or self.elastic is not None else agent
