# SPDX-License-Identifier: Apache-2.0
"""The common part of all placements on other machines: a process here whose pipes are the agent's, as ssh's are.

The command line only starts the agent; the job, its environment and its secret go through the pipes.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from horovod import __version__
from horovod.core.wording import on_one_line
from horovod.launcher.host import processes
from horovod.launcher.options.hosts import is_local
from horovod.launcher.placement.base import PlacementOptions
from horovod.world.interpreter import package_root, python_command

__all__ = ["NEEDED_BY_PYTHON", "REMOTE_AGENT_COMMAND", "RemotePlacement", "agent_words", "hint_in"]

REMOTE_AGENT_COMMAND = tuple(python_command("horovod.launcher.host.remote_agent"))
# Without them the interpreter might not start at all.
NEEDED_BY_PYTHON = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
_NOT_THERE = (126, 127)  # env's words, or a shell's, for a program that it cannot execute, or cannot find
_SHOWN_LINES = 6


def agent_words(environment: Mapping[str, str]) -> list[str]:
    """The command that starts the agent there. env, not the user's shell, which may be any, sets the variables."""
    variables = [f"{name}={environment[name]}" for name in NEEDED_BY_PYTHON if name in environment]
    return ["env", *variables, *REMOTE_AGENT_COMMAND]


def hint_in(hints: Mapping[str, str], said: str) -> str | None:
    """The first hint whose words were said."""
    return next((hint for words, hint in hints.items() if words in said), None)


class RemotePlacement:
    """Its subclasses say what is run, and what to make of its failures."""

    name = ""
    remote = True
    program = ""
    test = ""  # a command that must work; {host} stands for the host
    hints: Mapping[str, str] = {}  # by what the process says

    def command(self, host: str, environment: Mapping[str, str], options: PlacementOptions) -> list[str]:
        """The whole command line; no secret and nothing of the job stands on it."""
        raise NotImplementedError

    def own_environment(self, environment: Mapping[str, str]) -> dict[str, str] | None:
        """The environment of the process here; None: that of the launcher."""
        return None

    def is_unreached(self, code: int, said: str) -> bool:
        """True if this end says that the way to the host failed, not that something failed there."""
        raise NotImplementedError

    def reaches(self, host: str, options: PlacementOptions) -> bool:
        return options.start_with == self.name and not is_local(host)

    def start_agent(
        self, host: str, environment: Mapping[str, str], options: PlacementOptions
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(host, environment, options),
            env=self.own_environment(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches horovodrun alone
            preexec_fn=processes.die_with_parent(signal.SIGKILL),
        )

    def test_command(self, host: str, options: PlacementOptions) -> str:
        """A command that must work."""
        return self.test.format(host=shlex.quote(host))

    def hint(self, host: str, options: PlacementOptions, said: str) -> str | None:
        """The advice for a way that fails with these words; None if they are not known."""
        return hint_in(self.hints, said)

    def explain(self, host: str, options: PlacementOptions, code: int, said: str) -> tuple[str, str]:
        test = f"`{on_one_line(self.test_command(host, options))}` must work"
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if code < 0 or self.is_unreached(code, said):
            hint = self.hint(host, options, said)
            shown = lines if hint is None else lines[-1:]
            return f"cannot be reached by {self.name}: {_last_words(shown, code)}", hint or test
        if code in _NOT_THERE or any(sys.executable in line and "No such file" in line for line in lines):
            hint = "the job's Python must be at the same path on all hosts: a shared folder, or an equal installation"
            return f"has no Python at {sys.executable}", hint
        if "No module named" in said:
            hint = f"install hvd {__version__} there, into the same Python"
            return f"cannot import horovod: neither its Python nor {package_root()} has it", hint
        return f"could not start the agent (exit code {code}): {_last_words(lines, code)}", test

    def clean_up(self, host: str, directory: str) -> None:
        """Nothing: the agent's keeper has done it (launcher/host/remote_agent.py)."""


def _last_words(lines: Sequence[str], code: int) -> str:
    """The end of what was said, in one line if it was one."""
    if len(lines) < 2:
        return "".join(lines) or f"it ended with exit code {code}"
    return "its last words were" + "".join(f"\n      {line}" for line in lines[-_SHOWN_LINES:])
