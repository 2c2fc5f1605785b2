# SPDX-License-Identifier: Apache-2.0
"""The agent of another machine, started by ssh.

One ssh process and one connection a host: the same agent first says whether the host is ready, then takes the job. So
there is nothing to reuse a connection for.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from horovod.launcher.placement.base import PlacementOptions
from horovod.launcher.placement.remote import RemotePlacement, agent_words, hint_in

__all__ = ["SshPlacement"]

_CONNECT_TIMEOUT_S = 10
# ssh asks the user nothing. It takes the key of a new host, and refuses one that has changed.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECT_TIMEOUT_S),
    "StrictHostKeyChecking": "accept-new",
    "LogLevel": "ERROR",
    "ControlMaster": "no",  # a connection that the user shares is used, but this process never lingers to be shared
    "ClearAllForwardings": "yes",
}
_SSH_FAILED = 255
_PORT = 22


class SshPlacement(RemotePlacement):
    name = "ssh"
    program = "ssh"
    test = "ssh {host} true"
    # The first one whose words were said. {known} is the host's name among those that ssh knows.
    hints = {
        "Host key verification failed": "the host's key has changed; if that is right: ssh-keygen -R {known}",
        "Connection refused": "is sshd running there, and at this port? -p PORT chooses another",
        "timed out": "is the host up, and reachable from here? `{test}` must work",
        "No route": "is the host up, and reachable from here? `{test}` must work",
        "Could not resolve": "check the name; `{test}` must work",
        "Permission denied": "`{test}` must work without a password: {copy}, or -i KEYFILE",
    }
    hints_of_a_key = {
        "Load key": "{key} is not a private key that ssh can use",
        "Permission denied": "is {key} the right key, without a passphrase? `{test}` must work; if it is: {copy}",
    }

    def command(self, host: str, environment: Mapping[str, str], options: PlacementOptions) -> list[str]:
        command = ["ssh", "-T", "-x"]
        for name, value in _OPTIONS.items():
            command += ["-o", f"{name}={value}"]
        return [*command, *_flags(options), "--", host, shlex.join(agent_words(environment))]

    def test_command(self, host: str, options: PlacementOptions) -> str:
        return shlex.join(["ssh", *_flags(options), host, "true"])

    def hint(self, host: str, options: PlacementOptions, said: str) -> str | None:
        key = options.ssh_identity_file
        hint = (hint_in(self.hints_of_a_key, said) if key is not None else None) or hint_in(self.hints, said)
        if hint is None:
            return None
        return hint.format(
            test=self.test_command(host, options),
            copy=shlex.join(["ssh-copy-id", *_flags(options), host]),
            known=shlex.quote(host if options.ssh_port in (None, _PORT) else f"[{host}]:{options.ssh_port}"),
            key=key,
        )

    def is_unreached(self, code: int, said: str) -> bool:
        return code == _SSH_FAILED


def _flags(options: PlacementOptions) -> list[str]:
    port = ["-p", str(options.ssh_port)] if options.ssh_port is not None else []
    return port + (["-i", options.ssh_identity_file] if options.ssh_identity_file is not None else [])
