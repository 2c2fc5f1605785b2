# SPDX-License-Identifier: Apache-2.0
"""Programs that stand for those of batch systems that have no server here, with ssh underneath."""

from __future__ import annotations

import stat
from pathlib import Path

__all__ = ["kubernetes", "lsf", "pbs"]

_SSH = "ssh -T -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o LogLevel=ERROR"
# `blaunch HOST WORD...`: a shell of that host reads the words, as with rsh.
_BLAUNCH = f'#!/bin/sh\nexec {_SSH} "$@"\n'
# `kubectl exec [-i] [--container C] POD -- WORD...`: without -i the command reads nothing.
_KUBECTL = f"""#!/bin/bash
[ "$1" = exec ] || exit 64
stdin=/dev/null
while shift; do
  case $1 in
    -i) stdin=/dev/stdin ;;
    --container) shift ;;
    *) break ;;
  esac
done
pod=$1
[ "$2" = -- ] || exit 64
shift 2
exec {_SSH} "$pod" "$(printf '%q ' "$@")" <"$stdin"
"""
# As the MPI operator writes it.
_KUBEXEC = """#!/bin/sh
set -x
POD_NAME=$1
shift
{kubectl} exec ${{POD_NAME}} --container mpi -- /bin/sh -c "$*"
"""


def _program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def pbs(folder: Path, hosts: list[str]) -> dict[str, str]:
    """The environment of a job with a process for each entry of `hosts`. Its files go into `folder`, on PATH there."""
    (folder / "nodes").write_text("".join(f"{host}\n" for host in hosts))
    return {"PBS_NODEFILE": str(folder / "nodes"), "PBS_JOBID": "1.server", "PBS_O_WORKDIR": str(folder)}


def lsf(folder: Path, hosts: list[str]) -> dict[str, str]:
    """Likewise; with blaunch."""
    _program(folder / "blaunch", _BLAUNCH)
    pairs = " ".join(f"{host} {hosts.count(host)}" for host in dict.fromkeys(hosts))
    return {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": pairs}


def kubernetes(folder: Path, hosts: list[str], old: bool = True) -> dict[str, str]:
    """Likewise, of the MPI operator; the old one has kubectl and kubexec.sh."""
    lines = "".join(f"{host} slots={hosts.count(host)}\n" for host in dict.fromkeys(hosts))
    (folder / "hostfile").write_text(lines)
    environment = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "OMPI_MCA_orte_default_hostfile": str(folder / "hostfile"),
    }
    if old:
        kubectl = _program(folder / "kubectl", _KUBECTL)
        script = _program(folder / "kubexec.sh", _KUBEXEC.format(kubectl=kubectl))
        environment["OMPI_MCA_plm_rsh_agent"] = str(script)
    return environment
