# SPDX-License-Identifier: Apache-2.0
"""A placement: a way to start the launcher's agent on a host (launcher/agent.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import horovod

__all__ = ["AGENT_COMMAND", "Placement", "agent_environment"]

AGENT_COMMAND = (sys.executable, "-m", "horovod.launcher.agent")


class Placement(Protocol):
    """Starts agents. Knows nothing of ranks or of what the agent says."""

    name: str

    def reaches(self, host: str) -> bool:
        """Whether this placement can start an agent on `host`. Does not block."""

    def start_agent(self, host: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts AGENT_COMMAND on `host` with binary, unbuffered pipes as stdin (orders) and stdout (events).

        stderr stays the launcher's. The process ends when the agent has ended, and a kill of it ends the agent. Raises
        OSError if it cannot be started.
        """

    def clean_up(self, host: str, directory: str) -> None:
        """Removes the job's temporary directory if an agent that was killed has left it. `directory` may be empty."""


def agent_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The agent imports this very package, whatever the user's directory holds."""
    root = str(Path(horovod.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
