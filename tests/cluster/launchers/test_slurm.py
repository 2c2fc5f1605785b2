# SPDX-License-Identifier: Apache-2.0
"""Real Slurm over two hosts: srun by itself, in sbatch and in salloc, with nothing set; and what ends such a job."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.extent import SLACK_S
from support.jobs import abreast
from support.schedulers.slurm import Slurm, lacking
from support.started import Folder, assert_world, environment, mpi, not_run
from support.watch import id_of, script, shown_until

HOSTS = {"host0": [0, 1], "host1": [2, 3]}
CYCLIC = {"host0": [0, 2], "host1": [1, 3]}
_PMI = {"openmpi": "--mpi=pmix", "mpich": "--mpi=pmi2"}
TWO_BY_TWO = ["-N2", "--ntasks-per-node=2"]


@pytest.fixture(scope="module")
def slurm(cluster_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two hosts with Slurm for all tests of this file; nothing may run there after each of them."""
    if reason := lacking():
        not_run(reason)
    made = Cluster(2, shared=[tmp_path_factory.getbasetemp()])
    with made as hosts, Slurm(made, hosts) as slurm:
        made.trust()
        yield slurm


@pytest.fixture
def folder(slurm: Slurm, tmp_path: Path) -> Iterator[Folder]:
    """The ranks' scripts; nothing of the job may be left when the test ends."""
    made = Folder(tmp_path)
    yield made
    slurm.assert_idle()
    made.assert_nothing_is_left()


@pytest.mark.parametrize(
    "flags, name, hosts",
    [
        ([], "", HOSTS),
        (["--distribution=cyclic"], "", CYCLIC),
        (["--mpi=pmix"], "", HOSTS),
        (["--mpi=pmix"], "openmpi", HOSTS),
        (["--mpi=pmi2"], "mpich", HOSTS),
    ],
    ids=["plain", "cyclic", "pmix", "pmix-openmpi", "pmi2-mpich"],
)
def test_srun_starts_a_world(
    slurm: Slurm, folder: Folder, flags: list[str], name: str, hosts: dict[str, list[int]]
) -> None:
    python = mpi(name)[1] if name else sys.executable
    results = folder.new()
    words = ["srun", *TWO_BY_TWO, *flags, python, str(folder.started), str(results)]
    done = slurm.run(*words, env=environment(folder.home))
    assert done.returncode == 0, done
    assert_world(results, hosts, has_mpi=bool(name))


def test_a_wrapper_that_drops_the_variables_of_srun_is_told(slurm: Slurm, folder: Folder) -> None:
    """But not a step of one process, which has its variables."""
    code = [sys.executable, "-c", "import horovod.core as hvd; hvd.init(); assert hvd.size() == 1"]
    done = slurm.run("srun", *TWO_BY_TWO, "env", "-i", *code, env=environment(folder.home))
    assert done.returncode == 0, done
    assert (done.stdout + done.stderr).count("this process trains alone (size 1): srun (process ") == 4, done
    alone = slurm.run("srun", "-n1", "-N1", *code, env=environment(folder.home))
    assert alone.returncode == 0 and "trains alone" not in alone.stdout + alone.stderr, alone


def test_mpirun_in_an_allocation_starts_a_world(slurm: Slurm, folder: Folder) -> None:
    """mpirun reaches the other hosts by srun, so that the ranks there have the variables of a step of one task."""
    mpirun, python = mpi("openmpi")
    results = folder.new()
    words = ["salloc", *TWO_BY_TWO, *mpirun, "-np", "4", "-x", "HOME", python, str(folder.started), str(results)]
    done = slurm.run(*words, env=environment(folder.home))
    assert done.returncode == 0, done
    assert_world(results, HOSTS, has_mpi=True)


@pytest.mark.parametrize(
    "name, victim, how",
    [
        ("", 0, "os.kill(os.getpid(), signal.SIGKILL)"),
        ("", 3, "os.kill(os.getpid(), signal.SIGKILL)"),
        ("openmpi", 3, "os.kill(os.getpid(), signal.SIGKILL)"),
        ("mpich", 3, "sys.exit(3)"),
        ("mpich", 0, "raise ValueError"),
    ],
)
def test_a_rank_that_ends_early_ends_the_others(slurm: Slurm, folder: Folder, name: str, victim: int, how: str) -> None:
    """srun does not end the others, unless PMIx tells it. With MPI, none may wait in MPI_Finalize for the dead rank."""
    flags, python = ([_PMI[name]], mpi(name)[1]) if name else ([], sys.executable)
    results = folder.new()
    end = f"Path(sys.argv[1], 'killed').touch(); {how}"
    words = ["srun", *TWO_BY_TWO, *flags, python, str(folder.training), str(results), str(victim), end]
    done = slurm.run(*words, env=environment(folder.home))
    assert done.returncode != 0, done
    ended_s = time.time() - (results / "killed").stat().st_mtime
    assert ended_s < 6.0 + SLACK_S, done
    told = {path.name: path.read_text() for path in results.iterdir() if path.name != "killed"}
    assert name == "openmpi" or set(told) == {"0", "1", "2", "3"} - {str(victim)}
    for text in told.values():
        assert re.search(rf"rank {victim} (\(process \d+\) died|is gone|has left the job)", text), told


def test_a_rank_that_never_starts_is_named(slurm: Slurm, folder: Folder) -> None:
    end = "os.environ['SLURM_PROCID'] == '2' or hvd.init()"
    code = f"import os; import horovod.core as hvd\n{abreast(4, folder.new())}{end}"
    more = {"HOROVOD_START_TIMEOUT": "3"}
    done = slurm.run("srun", *TWO_BY_TWO, sys.executable, "-c", code, env=environment(folder.home, **more))
    assert done.returncode != 0
    assert done.stderr.count("in init for rank 2 of 4, which has not called init; here: ranks 0, 1, 3") == 3, done


@pytest.mark.thorough
def test_top_sees_a_job_of_srun_from_the_other_host(slurm: Slurm, folder: Folder) -> None:
    command, enough = script(folder.path, "srun")
    watched = threading.Thread(
        target=slurm.run, args=("srun", *TWO_BY_TWO, *command), kwargs={"env": environment(folder.home)}
    )
    watched.start()
    try:
        name = id_of(command[1], on=slurm.hosts[1])
        text = shown_until(r"rank 1 \(host host0\) has been .* it is in prepare", "top", "--once", on=slurm.hosts[1])
        assert f"job {name}: 4 ranks on 2 hosts" in text
        assert "in prepare" in shown_until("in prepare", "stacks", name, on=slurm.hosts[1])
    finally:
        enough.touch()
        watched.join()


def test_the_guides_job_file_runs(slurm: Slurm, folder: Folder) -> None:
    job = folder.guide("slurm")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    words = ["sh", "-c", f"cd {folder.path} && sbatch --parsable {job.name}"]
    number = slurm.run(*words, env=environment(folder.home, PATH=path), check=True).stdout.strip()
    state = slurm.wait_for_job(number)
    printed = (folder.path / f"train-{number}.out").read_text()
    assert (state, printed) == ("COMPLETED", "sum 15 of 4\n" * 4)
