# SPDX-License-Identifier: Apache-2.0
"""mpirun of four MPIs over two hosts: with nothing set, the ranks are one world, and a death ends it for all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.extent import SLACK_S, later
from support.started import MPI_SLOTS, Folder, assert_world, end_of, environment, mpi

HOSTS = {"host0": [0, 1], "host1": [2, 3]}


@pytest.mark.slow("a job on several hosts")
@pytest.mark.parametrize("name", [later(name) if name == "intel" else name for name in MPI_SLOTS])
def test_mpirun_starts_a_world_over_two_hosts(cluster: MakeCluster, tmp_path: Path, name: str) -> None:
    made = cluster(2)
    one, _ = made.hosts
    made.trust()
    folder = Folder(tmp_path)
    mpirun, python = mpi(name)
    # With mpi4py for this MPI, and with a Python that has none.
    for program, has_mpi in ((python, True), (sys.executable, False)):
        results = folder.new()
        command = [*mpirun, *MPI_SLOTS[name], program, str(folder.started), str(results)]
        done = one.run(*command, env=environment(folder.home))
        assert done.returncode == 0, done
        assert_world(results, HOSTS, has_mpi)
        folder.assert_nothing_is_left()


SETS = """
from mpi4py import MPI
import os
import numpy as np
import horovod.core as hvd
world = MPI.COMM_WORLD
half = hvd.ProcessSet(GIVEN)
hvd.init(process_sets=[half])
total = hvd.allreduce(np.array([2**hvd.rank()]), op=hvd.Sum, process_set=half)[0]
os.write(1, f"sum {total}\\n".encode())
hvd.barrier()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_communicators_of_split_are_process_sets_and_lists_that_differ_end_the_job(
    cluster: MakeCluster, tmp_path: Path, name: str
) -> None:
    made = cluster(2)
    made.trust()
    folder = Folder(tmp_path)
    mpirun, python = mpi(name)
    for given, rounds in (("world.Split(world.rank % 2, world.rank)", 1), ("[world.rank % 2, 2 + world.rank % 2]", 5)):
        command = [*mpirun, *MPI_SLOTS[name], python, "-c", SETS.replace("GIVEN", given)]
        for _ in range(rounds):
            began_s = time.monotonic()
            done = made.hosts[0].run(*command, env=environment(folder.home))
            if rounds == 1:
                sums = sorted(re.findall(r"sum \d+", done.stdout))
                assert (done.returncode, sums) == (0, ["sum 10", "sum 10", "sum 5", "sum 5"]), done
                continue
            assert done.returncode != 0
            assert "the ranks disagree about the process sets given to init: [[0, 2]] on ranks 0, 2" in done.stderr
            assert time.monotonic() - began_s < 15 + SLACK_S  # the start timeout is 30 s
    for host in made.hosts:
        host.run("sh", "-c", "rm -f /dev/shm/mpich_shm_*", check=True)  # MPICH leaves them if it is not finalized


@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_rank_of_mpirun_ends_the_others(cluster: MakeCluster, tmp_path: Path, victim: int) -> None:
    """Also if mpirun does not end those of other hosts. It always ends the neighbours, which may then say nothing. The
    neighbour of rank 3, which it ends, may be the first to be missed."""
    made = cluster(2)
    made.trust()
    folder = Folder(tmp_path)
    mpirun, python = mpi("mpich")
    results = folder.new()
    end = "os.kill(os.getpid(), signal.SIGKILL)"
    elsewhere = ["0", "1"] if victim == 3 else ["2", "3"]
    training = [python, str(folder.training), str(results), str(victim), end, *elsewhere]
    done = made.hosts[0].run(
        *mpirun, "-disable-auto-cleanup", *MPI_SLOTS["mpich"], *training, env=environment(folder.home)
    )
    for host in made.hosts:
        host.run("sh", "-c", "rm -f /dev/shm/mpich_shm_*", check=True)  # MPICH leaves them if it is not finalized
    assert done.returncode != 0
    told = {path.name: path.read_text() for path in results.iterdir()}
    assert set(elsewhere) <= set(told)
    for text in told.values():
        assert re.search(rf"rank {victim} (\(process \d+\) died|is gone)|rank 2 is gone", text), told
    folder.assert_nothing_is_left()


def test_the_guides_job_file_runs(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(2)
    made.trust()
    folder = Folder(tmp_path)
    job = folder.guide("mpi", server1="host0", server2="host1")
    _, python = mpi("openmpi")
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    words = ["sh", "-c", f"cd {tmp_path} && bash {job.name}"]
    done = made.hosts[0].run(*words, env=environment(folder.home, PATH=path, **as_root))
    assert (done.returncode, done.stdout) == (0, "sum 15 of 4\n" * 4), done


@pytest.mark.thorough
def test_torchrun_starts_a_world_over_two_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")
    one, two = cluster(2).hosts
    folder = Folder(tmp_path)
    results = folder.new()
    flags = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host0:29400", "--rdzv-id=7"]
    words = [sys.executable, "-m", "torch.distributed.run", *flags, str(folder.started), str(results)]
    pipe = subprocess.PIPE
    runs = [
        host.popen(*words, env=environment(folder.home), stdout=pipe, stderr=pipe, text=True) for host in (one, two)
    ]
    ends = end_of(runs)
    assert [code for code, _ in ends] == [0, 0], ends
    ranks = {"host0": [0, 1], "host1": [2, 3]}
    if json.loads((results / "0.json").read_text())["host"] == "host1":  # torchrun orders the hosts as it likes
        ranks = {"host1": [0, 1], "host0": [2, 3]}
    assert_world(results, ranks)
    folder.assert_nothing_is_left()
