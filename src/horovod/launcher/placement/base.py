# SPDX-License-Identifier: Apache-2.0
"""A placement: a way to start the launcher's agent on a host (launcher/agent.py)."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import horovod

__all__ = ["AGENT_COMMAND", "Placement", "PlacementOptions", "agent_environment", "package_root"]

AGENT_COMMAND = (sys.executable, "-m", "horovod.launcher.agent")


@dataclasses.dataclass(frozen=True)
class PlacementOptions:
    """What the command line says of the way to other hosts. `start_with`: the name of a remote placement."""

    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    start_with: str = "ssh"


class Placement(Protocol):
    """Starts agents. Knows nothing of ranks or of what the agent says."""

    name: str
    remote: bool  # other machines: the ranks there meet at an address of this one's network
    program: str  # what must be on PATH for it; empty if nothing

    def reaches(self, host: str, options: PlacementOptions) -> bool:
        """Whether this placement can start an agent on `host`. May look the name up, but asks nothing of the host."""

    def start_agent(
        self, host: str, environment: Mapping[str, str], options: PlacementOptions
    ) -> subprocess.Popen[bytes]:
        """Starts AGENT_COMMAND on `host` with binary, unbuffered pipes as stdin (orders) and stdout (events).

        stderr is a pipe, too, or stays the launcher's. The process ends when the agent has ended, and a kill of it ends
        the agent. Raises OSError if it cannot be started.
        """

    def explain(self, host: str, options: PlacementOptions, code: int, said: str) -> tuple[str, str]:
        """Why the process ended with `code` before the agent answered, and a hint.

        `said`: the end of what it wrote to stdout, and of its stderr.
        """

    def clean_up(self, host: str, directory: str) -> None:
        """Removes the job's temporary directory if an agent that was killed has left it. `directory` may be empty."""


def agent_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The agent imports this very package, whatever the user's directory holds."""
    path = os.pathsep.join(filter(None, [package_root(), environment.get("PYTHONPATH", "")]))
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def package_root() -> str:
    """The folder from which this package is imported."""
    return str(Path(horovod.__file__).resolve().parent.parent)
