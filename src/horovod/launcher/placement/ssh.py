# SPDX-License-Identifier: Apache-2.0
"""The agent of another machine, started by ssh.

One ssh process and one connection a host: the same agent first says whether the host is ready, then takes the job. So
there is nothing to reuse a connection for. On the command line stands only what starts the agent; the job, its
environment and its secret go through the pipes.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping

from horovod import __version__
from horovod.launcher import processes
from horovod.launcher.hosts import is_local
from horovod.launcher.placement.base import PlacementOptions, agent_environment, package_root

__all__ = ["SshPlacement"]

_CONNECT_TIMEOUT_S = 10
# Nobody is asked anything. The key of a host that is new is taken, one that has changed is refused.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECT_TIMEOUT_S),
    "StrictHostKeyChecking": "accept-new",
    "LogLevel": "ERROR",
    "ControlMaster": "no",  # a connection that the user shares is used, but this process never lingers to be shared
    "ClearAllForwardings": "yes",
}
# Without them the interpreter might not start at all.
_NEEDED_BY_PYTHON = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
_SSH_FAILED = 255
_NOT_THERE = (126, 127)  # env's words for a program that it cannot execute, or cannot find

# What ssh says, and what to do about it.
_HINTS = {
    "Permission denied": "`ssh {host} true` must work without a password: ssh-copy-id {host}, or -i KEYFILE",
    "Could not resolve": "check the name; `ssh {host} true` must work",
    "Host key verification failed": "the host's key has changed; if that is right: ssh-keygen -R {host}",
    "Connection refused": "is sshd running there, and at this port? -p PORT chooses another",
    "timed out": "is the host up, and reachable from here? `ssh {host} true` must work",
    "No route": "is the host up, and reachable from here? `ssh {host} true` must work",
}


class SshPlacement:
    name = "ssh"
    remote = True

    def reaches(self, host: str) -> bool:
        return not is_local(host)

    def start_agent(
        self, host: str, environment: Mapping[str, str], options: PlacementOptions
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ssh_command(host, environment, options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches horovodrun alone
            preexec_fn=processes.die_with_parent(signal.SIGKILL),
        )

    def explain(self, host: str, code: int, said: str) -> tuple[str, str]:
        last = said.strip().splitlines()[-1:] or [f"it ended with exit code {code}"]
        if code == _SSH_FAILED or code < 0:
            hint = next((hint for words, hint in _HINTS.items() if words in said), "`ssh {host} true` must work")
            return f"cannot be reached by ssh: {last[0].strip()}", hint.format(host=host)
        if code in _NOT_THERE:
            hint = "the job's Python must be at the same path on all hosts: a shared folder, or an equal installation"
            return f"has no Python at {sys.executable}", hint
        if "No module named" in said:
            hint = f"install hvd {__version__} there, into the same Python"
            return f"cannot import horovod: neither its Python nor {package_root()} has it", hint
        return f"could not start the agent (exit code {code}): {last[0].strip()}", f"`ssh {host} true` must work"

    def clean_up(self, host: str, directory: str) -> None:
        """Nothing: the agent's keeper has done it (launcher/remote_agent.py)."""


def ssh_command(host: str, environment: Mapping[str, str], options: PlacementOptions) -> list[str]:
    """The whole command line; no secret and nothing of the job stands on it."""
    command = ["ssh", "-T", "-x"]
    for name, value in _OPTIONS.items():
        command += ["-o", f"{name}={value}"]
    if options.ssh_port is not None:
        command += ["-p", str(options.ssh_port)]
    if options.ssh_identity_file is not None:
        command += ["-i", options.ssh_identity_file]
    own = agent_environment(environment)
    variables = [f"{name}={own[name]}" for name in _NEEDED_BY_PYTHON if name in own]
    # env, not the user's shell, which may be any, sets the variables.
    there = ["env", *variables, sys.executable, "-m", "horovod.launcher.remote_agent"]
    return [*command, "--", host, shlex.join(there)]
