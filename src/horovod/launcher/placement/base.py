# SPDX-License-Identifier: Apache-2.0
"""A placement: a way to start the launcher's agent on a host (launcher/host/agent.py)."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import horovod

__all__ = ["AGENT_COMMAND", "Placement", "PlacementOptions", "import_command", "package_root", "python_command"]

# One line, since a shell of another machine may read it, and csh takes no more. Nothing is imported before the working
# directory is off the search path: -c puts it first, an empty entry of PYTHONPATH somewhere. `os` is loaded already.
# Where this package is not at the same place, it is looked for as usual.
_FIND = (
    "import sys, os; d = {{'', os.getcwd()}} - {{os.path.dirname(os.__file__)}}; "
    "sys.path[:] = [p for p in sys.path if p not in d]; from importlib import machinery as m, util as u; "
    "f = m.PathFinder.find_spec('horovod', [{root!r}]); h = f and u.module_from_spec(f); "
    "h and (sys.modules.update(horovod=h), f.loader.exec_module(h)); sys.path.append({root!r}); "
)
_RUN = "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"


@dataclasses.dataclass(frozen=True)
class PlacementOptions:
    """The options of the command line for the way to other hosts. `start_with`: the name of a remote placement."""

    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    start_with: str = "ssh"


class Placement(Protocol):
    """Starts agents. Knows nothing of ranks or of what the agent says."""

    name: str
    remote: bool  # other machines: the ranks there meet at an address of this one's network
    program: str  # what must be on PATH for it; empty if nothing

    def reaches(self, host: str, options: PlacementOptions) -> bool:
        """True if this placement can start an agent on `host`. May look the name up, but asks nothing of the host."""

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


def python_command(module: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module of this very package, whatever the user's directory and PYTHONPATH hold.

    What is installed beside this package comes last: it may be an obsolete copy of a module of the standard library.
    """
    return [python, "-c", _FIND.format(root=package_root()) + _RUN.format(module=module)]


def import_command(module: str, then: str = "") -> list[str]:
    """The command that imports a module, of this very package as well, and then runs this code."""
    return [sys.executable, "-c", _FIND.format(root=package_root()) + f"import {module}\n{then}"]


def package_root() -> str:
    """The folder from which this package is imported."""
    return str(Path(horovod.__file__).resolve().parent.parent)


AGENT_COMMAND = tuple(python_command("horovod.launcher.host.agent"))
