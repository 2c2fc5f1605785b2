# SPDX-License-Identifier: Apache-2.0
"""horovodrun --mpi on two hosts: a real mpirun starts the ranks, which find each other."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.jobs import run_job

SCRIPT = """
import os
import numpy as np
import horovod.core as hvd
hvd.init()
total = hvd.allreduce(np.ones(3), op=hvd.Sum, name="ones")
words = os.uname().nodename, hvd.rank(), hvd.size(), int(total[0]), os.environ["WORD"], os.environ["HOROVOD_CYCLE_TIME"]
os.write(1, " ".join(map(str, words)).encode() + b"\\n")  # at once: mpirun would put its prefix before each piece
"""


@pytest.mark.skipif(
    shutil.which("mpirun") is None and os.environ.get("REQUIRE_CLUSTER") != "1", reason="not run: there is no mpirun"
)
def test_mpirun_gets_hosts_variables_ssh_and_folder(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(2)
    made.second_sshd(made.hosts[1], 2222, tmp_path / "key")
    way = ["-p", "2222", "-i", str(tmp_path / "key")]
    known = ["-o", "StrictHostKeyChecking=accept-new"]  # mpirun's ssh asks about hosts that are new
    made.hosts[0].run("ssh", *way, *known, "host1", "true", check=True)
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = ["--mpi", "-np", "4", "-H", "host0:2,host1:2", *way, "--verbose"]
    flags += ["--cycle-time-ms", "3", "--network-interface", "eth0", "--output-filename", "out"]
    environment = {"WORD": "a 'b' $c", "HOROVOD_RENDEZVOUS_DIRECTORY": str(tmp_path), "TMPDIR": "/tmp"}
    done = run_job(tmp_path, flags, sys.executable, "train.py", env=environment, on=made.hosts[0])
    assert done.code == 0, done
    assert [line.partition(":")[2] for line in sorted(done.stdout.splitlines())] == [
        f"host{rank // 2} {rank} 4 4 a 'b' $c 3.0" for rank in range(4)
    ]
    assert "horovodrun: hosts host0:2,host1:2, from -H\nhorovodrun: mpirun --allow-run-as-root " in done.stderr
    assert len(list((tmp_path / "out").rglob("stdout"))) == 4
