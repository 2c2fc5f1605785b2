# SPDX-License-Identifier: Apache-2.0
"""The agent of another machine, started by ssh.

One ssh process and one connection a host: the same agent first says whether the host is ready, then takes the job. So
there is nothing to reuse a connection for.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from horovod.launcher.placement.base import PlacementOptions
from horovod.launcher.placement.remote import RemotePlacement, agent_words

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
_SSH_FAILED = 255


class SshPlacement(RemotePlacement):
    name = "ssh"
    program = "ssh"
    test = "ssh {host} true"
    hints = {
        "Permission denied": "`ssh {host} true` must work without a password: ssh-copy-id {host}, or -i KEYFILE",
        "Could not resolve": "check the name; `ssh {host} true` must work",
        "Host key verification failed": "the host's key has changed; if that is right: ssh-keygen -R {host}",
        "Connection refused": "is sshd running there, and at this port? -p PORT chooses another",
        "timed out": "is the host up, and reachable from here? `ssh {host} true` must work",
        "No route": "is the host up, and reachable from here? `ssh {host} true` must work",
    }

    def command(self, host: str, environment: Mapping[str, str], options: PlacementOptions) -> list[str]:
        command = ["ssh", "-T", "-x"]
        for name, value in _OPTIONS.items():
            command += ["-o", f"{name}={value}"]
        if options.ssh_port is not None:
            command += ["-p", str(options.ssh_port)]
        if options.ssh_identity_file is not None:
            command += ["-i", options.ssh_identity_file]
        return [*command, "--", host, shlex.join(agent_words(environment))]

    def is_unreached(self, code: int, said: str) -> bool:
        return code == _SSH_FAILED
