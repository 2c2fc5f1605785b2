# SPDX-License-Identifier: Apache-2.0
"""The agent of a host that another program than ssh leads to: the one that mpirun is told of by OMPI_MCA_plm_rsh_agent.

The MPI operator of Kubernetes (before version 2, which uses ssh) names a script there, kubexec.sh. It calls
`kubectl exec` without the agent's standard input. So what the script calls is called here, with `-i`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from horovod.launcher.placement.base import PlacementOptions
from horovod.launcher.placement.remote import RemotePlacement, agent_words

__all__ = ["RshAgentPlacement"]

VARIABLE = "OMPI_MCA_plm_rsh_agent"
# The name of the pod is a variable of the script, and stands among kubectl's own flags.
_KUBECTL = re.compile(r"^\s*(?P<kubectl>\S*kubectl)\s+exec\s+(?P<flags>.*?)\s--\s", re.MULTILINE)
_POD = re.compile(r"\$\{?POD_NAME\}?")


class RshAgentPlacement(RemotePlacement):
    name = "rsh-agent"
    test = f"${VARIABLE} {{host}} true"

    def command(self, host: str, environment: Mapping[str, str], options: PlacementOptions) -> list[str]:
        agent = shlex.split(environment.get(VARIABLE, "ssh"))
        command = shlex.join(agent_words(environment))
        kubectl = _kubectl_of(agent[0]) if len(agent) == 1 else None
        if kubectl is not None:
            return [*kubectl, host, "--", "/bin/sh", "-c", command]
        return [*agent, host, command]

    def is_unreached(self, code: int, said: str) -> bool:
        return code == 255 or "Error from server" in said or "error: " in said


def _kubectl_of(script: str) -> list[str] | None:
    """The command that a script like the MPI operator's kubexec.sh calls, with -i; None if it is another program."""
    try:
        text = Path(script).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = _KUBECTL.search(text)
    if found is None:
        return None
    flags = [word for word in shlex.split(found["flags"]) if not _POD.fullmatch(word)]
    if any("$" in word for word in [found["kubectl"], *flags]):
        return None
    stdin = [] if {"-i", "--stdin", "-it"} & set(flags) else ["-i"]
    return [found["kubectl"], "exec", *stdin, *flags]
