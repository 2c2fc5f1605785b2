# SPDX-License-Identifier: Apache-2.0
"""MPI in ranks of one host: communicators of mpi4py for init and process sets, and what is said if there is no MPI."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.jobs import run_job
from support.started import Folder, environment, mpi

COMMUNICATORS = r"""
import os
import numpy as np
from mpi4py import MPI
import horovod.core as hvd

world = MPI.COMM_WORLD
rank = world.rank

def total(**options):
    return hvd.allreduce(np.array([float(rank)]), op=hvd.Sum, name="total", **options)[0]

half = world.Split(rank % 2, -rank)  # in another order
hvd.init(comm=half)
assert (hvd.rank(), hvd.size()) == (half.rank, half.size)
assert total() == half.allreduce(float(rank))
hvd.shutdown()

hvd.init(comm=MPI.COMM_SELF)
assert hvd.size() == 1 and total() == rank
hvd.shutdown()

if rank in (0, 2):
    hvd.init(comm=[0, 2])
    assert (hvd.rank(), hvd.size(), total()) == (rank // 2, 2, 2.0)
    hvd.shutdown()

pair = world.Split(rank // 2, rank)
for comm in (None, world, [world, half]):
    own = hvd.ProcessSet(half)
    listed = [] if comm == [world, half] else [own]
    hvd.init(comm, process_sets=[*listed, hvd.ProcessSet(pair)])
    own = own if listed else hvd.ProcessSet(half)
    assert own is hvd.ProcessSet(half) and own.ranks == [rank % 2, 2 + rank % 2] and own.size() == 2
    assert total(process_set=own) == half.allreduce(float(rank))
    assert total(process_set=hvd.ProcessSet(pair)) == pair.allreduce(float(rank))
    hvd.barrier()
    hvd.shutdown()

some = world.Split(0 if rank < 3 else MPI.UNDEFINED, rank)
hvd.init(comm=[world, some])
if rank < 3:
    assert total(process_set=hvd.ProcessSet(some)) == 3.0
else:
    assert hvd.ProcessSet(some).process_set_id is None
hvd.barrier()
hvd.shutdown()

pair = world.Split(rank // 2, rank)
sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])]
sets[rank // 2] = hvd.ProcessSet(pair)
hvd.init(comm=list(range(4)), process_sets=sets)
assert hvd.size() == 4 and sets[rank // 2].mpi_comm is pair
assert total(process_set=sets[rank // 2]) == pair.allreduce(float(rank))
hvd.barrier()
os.write(1, f"{hvd.mpi_built()} {hvd.mpi_enabled()} {hvd.mpi_threads_supported()}\n".encode())
"""


def run(folder: Path, ranks: int, code: str, name: str = "mpich", **env: str) -> subprocess.CompletedProcess[str]:
    mpirun, program = mpi(name)
    command = [*mpirun, "-np", str(ranks), program, "-c", code]
    own = environment(Folder(folder).home, **env)
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False)


@pytest.mark.slow("jobs of several ranks")
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
@pytest.mark.parametrize("way", [pytest.param("mpi", marks=pytest.mark.thorough), "tcp"])
def test_init_and_process_sets_take_communicators(tmp_path: Path, name: str, way: str) -> None:
    done = run(tmp_path, 4, COMMUNICATORS, name, HOROVOD_CPU_OPERATIONS=way)
    used = way == "mpi"
    assert done.stdout.count(f"True {used} {used}") == 4, done  # lines of ranks may run into each other
    assert done.returncode == 0, done


def test_a_script_may_end_mpi_by_itself(tmp_path: Path) -> None:
    code = """
import time
import numpy as np
from mpi4py import MPI
import horovod.core as hvd
hvd.init()
assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 2
MPI.Finalize()
time.sleep(0.5)
print("end")
"""
    done = run(tmp_path, 2, code, HOROVOD_CPU_OPERATIONS="mpi")
    assert (done.returncode, done.stdout.count("end")) == (0, 2), done


def test_a_call_of_init_that_is_wrong_on_one_rank_ends_the_others_soon(tmp_path: Path) -> None:
    """MPI is the script's: MPI_Finalize would wait for the others, and they in init for this rank."""
    code = "from mpi4py import MPI; import horovod.core as hvd; hvd.init(process_sets=[3] * MPI.COMM_WORLD.rank)"
    done = run(tmp_path, 2, code, HOROVOD_START_TIMEOUT="1000")
    assert done.returncode != 0
    assert "InvalidRequestError: init(process_sets=[3]): expected a list of ProcessSet" in done.stderr, done


def test_under_horovodrun_mpi_knows_of_one_process_only(tmp_path: Path) -> None:
    _, program = mpi("mpich")
    script = tmp_path / "script.py"
    setting = "import os\nos.environ['HOROVOD_CPU_OPERATIONS'] = 'mpi'\n"  # horovodrun would know better
    script.write_text(setting + "import horovod.core as hvd\nhvd.init()\n")
    done = run_job(tmp_path, ["-np", "2"], [program, str(script)])
    assert done.code != 0
    assert "the job has 1 of its processes, but there are 2 ranks" in done.stderr, done.stderr
