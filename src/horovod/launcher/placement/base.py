# SPDX-License-Identifier: Apache-2.0
"""A placement: a way to start the launcher's agent on a host (launcher/host/agent.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import IO, Any, Protocol

from horovod.world.interpreter import python_command

__all__ = ["AGENT_COMMAND", "Carrier", "Placement", "PlacementOptions"]


@dataclasses.dataclass(frozen=True)
class PlacementOptions:
    """The options of the command line for the way to other hosts. `start_with`: the name of a remote placement."""

    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    start_with: str = "ssh"


class Carrier(Protocol):
    """The carrier of an agent's pipes: a process (subprocess.Popen), or a connection (joined.py)."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    returncode: int | Any  # None until it was waited for

    def kill(self) -> None:
        """Ends it at once."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""


class Placement(Protocol):
    """Starts agents. Knows nothing of ranks or of what the agent says."""

    name: str
    remote: bool  # other machines: the ranks there meet at an address of this one's network
    program: str  # what must be on PATH for it; empty if nothing

    def reaches(self, host: str, options: PlacementOptions) -> bool:
        """True if this placement can start an agent on `host`. May look the name up, but asks nothing of the host."""

    def start_agent(self, host: str, environment: Mapping[str, str], options: PlacementOptions) -> Carrier:
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


AGENT_COMMAND = tuple(python_command("horovod.launcher.host.agent"))
