# SPDX-License-Identifier: Apache-2.0
"""mpirun of four MPIs over two hosts: with nothing set, the ranks are one world, and a death ends it for all."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.started import MPI_SLOTS, Folder, assert_world, environment, mpi

HOSTS = {"host0": [0, 1], "host1": [2, 3]}


@pytest.mark.parametrize("name", MPI_SLOTS)
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


@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_rank_of_mpirun_ends_the_others(cluster: MakeCluster, tmp_path: Path, victim: int) -> None:
    """Also if mpirun does not end those of other hosts. It always ends the neighbours, which may then say nothing."""
    made = cluster(2)
    made.trust()
    folder = Folder(tmp_path)
    mpirun, python = mpi("mpich")
    results = folder.new()
    end = "os.kill(os.getpid(), signal.SIGKILL)"
    words = ["-disable-auto-cleanup", *MPI_SLOTS["mpich"], python, str(folder.training), str(results), str(victim), end]
    done = made.hosts[0].run(*mpirun, *words, env=environment(folder.home))
    assert done.returncode != 0
    told = {int(path.name): path.read_text() for path in results.iterdir()}
    elsewhere = {0, 1} if victim == 3 else {2, 3}
    assert elsewhere <= set(told)
    for text in told.values():
        assert re.search(rf"rank {victim} (\(process \d+\) died|is gone)", text), told
    folder.assert_nothing_is_left()
    for host in made.hosts:
        host.run("sh", "-c", "rm -f /dev/shm/mpich_shm_*", check=True)  # MPICH leaves them if it is not finalized
