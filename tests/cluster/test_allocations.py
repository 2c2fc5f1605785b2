# SPDX-License-Identifier: Apache-2.0
"""horovodrun inside allocations of batch systems: hosts, slots and the way to start agents come from these.

LSF and Kubernetes have no server here. Programs that do what theirs promise stand for them, with ssh underneath.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster
from support.jobs import Done, python, run_job

HOSTS = [f"[{rank}]<stdout>:host{rank // 2} {rank} of 4" for rank in range(4)]
SCRIPT = """
import horovod.core as hvd
hvd.init()
print(os.uname().nodename, hvd.rank(), "of", hvd.size())
"""

SSH = "ssh -T -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o LogLevel=ERROR"
# `blaunch HOST WORD...`: a shell of that host reads the words, as with rsh.
BLAUNCH = f'#!/bin/sh\nexec {SSH} "$@"\n'
# `kubectl exec [-i] [--container C] POD -- WORD...`: without -i the command reads nothing.
KUBECTL = f"""#!/bin/bash
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
exec {SSH} "$pod" "$(printf '%q ' "$@")" <"$stdin"
"""
KUBEXEC = """#!/bin/sh
set -x
POD_NAME=$1
shift
{kubectl} exec ${{POD_NAME}} --container mpi -- /bin/sh -c "$*"
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def pbs(folder: Path) -> dict[str, str]:
    (folder / "nodes").write_text("host0\nhost1\nhost0\nhost1\n")
    return {"PBS_NODEFILE": str(folder / "nodes"), "PBS_JOBID": "1.server"}


def lsf(folder: Path) -> dict[str, str]:
    program(folder / "blaunch", BLAUNCH)
    return {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "host0 2 host1 2"}


def kubernetes(folder: Path) -> dict[str, str]:
    kubectl = program(folder / "kubectl", KUBECTL)
    kubexec = program(folder / "kubexec.sh", KUBEXEC.format(kubectl=kubectl))
    (folder / "hostfile").write_text("host0 slots=2\nhost1 slots=2\n")
    return {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "OMPI_MCA_orte_default_hostfile": str(folder / "hostfile"),
        "OMPI_MCA_plm_rsh_agent": str(kubexec),
    }


def run_inside(environment: dict[str, str], folder: Path, *flags: str, on: Host, script: str = SCRIPT) -> Done:
    own = {**environment, "PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin"}
    return run_job(folder, *flags, python(script), env=own, on=on)


@pytest.mark.parametrize(
    ("make", "way", "origin"),
    [
        (pbs, "ssh", "PBS job 1.server (PBS_NODEFILE)"),
        (lsf, "blaunch", "LSF job 1 (LSB_MCPU_HOSTS)"),
        (kubernetes, "rsh-agent", "Kubernetes (OMPI_MCA_orte_default_hostfile)"),
    ],
    ids=["pbs", "lsf", "kubernetes"],
)
def test_inside_an_allocation_no_flag_is_needed(
    cluster: MakeCluster, tmp_path: Path, make: object, way: str, origin: str
) -> None:
    one, two = cluster(2).hosts
    environment = make(tmp_path)  # type: ignore[operator]
    done = run_inside(environment, tmp_path, "--verbose", on=one)
    assert (done.code, sorted(done.stdout.splitlines())) == (0, HOSTS), done
    said = done.stderr.splitlines()
    assert said[:2] == [
        f"horovodrun: hosts host0:2,host1:2, from {origin}",
        f"horovodrun: other hosts are reached by {way}",
    ]
    # A rank that dies there is told, and nothing stays.
    failing = "if rank == 3: os.kill(os.getpid(), 9)\nsignal.pause()"
    failed = run_inside(environment, tmp_path, on=one, script=failing)
    assert failed.code == 137, failed
    assert "horovodrun: rank 3 on host host1 was killed by SIGKILL" in failed.stderr
    two.assert_empty()
