# SPDX-License-Identifier: Apache-2.0
"""horovodrun inside allocations of batch systems: hosts, slots and the way to start agents come from these.

LSF and Kubernetes have no server here: programs stand for theirs (support/stand_ins.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster
from support.jobs import Done, python, run_job
from support.stand_ins import kubernetes, lsf, pbs

HOSTS = [f"[{rank}]<stdout>:host{rank // 2} {rank} of 4" for rank in range(4)]
SCRIPT = """
import horovod.core as hvd
hvd.init()
print(os.uname().nodename, hvd.rank(), "of", hvd.size())
"""


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
    environment = make(tmp_path, ["host0", "host1", "host0", "host1"])  # type: ignore[operator]
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
