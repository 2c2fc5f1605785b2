# SPDX-License-Identifier: Apache-2.0
"""Data through MPI, over two hosts of two ranks: the contract's results, and what a lost rank or host comes to."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster
from support.extent import SLACK_S, THOROUGH
from support.started import MPI_SLOTS, ROOT, Folder, environment, mpi

from horovod.core.native import DTYPE_NAMES

# One that MPI reduces, and one that is moved by MPI and folded here. The others differ in nothing but these two ways.
pytestmark = pytest.mark.thorough  # not dependable yet: many of these fail, see docs/guides/mpi.md

DTYPES = DTYPE_NAMES if THOROUGH else ("float32", "bfloat16")
FEWER = DTYPES if THOROUGH else DTYPES[:1]  # where every operation takes milliseconds
BY_MPI = {"HOROVOD_CPU_OPERATIONS": "mpi"}
FORWARDED = ["HOME", "OMP_NUM_THREADS", "PYTHONPATH", "HOROVOD_CPU_OPERATIONS", "HOROVOD_LOST_TIMEOUT_SECONDS"]

# As rank, says when it has met the others, and then goes on for ever.
TRAIN = """
import os, sys
import numpy as np
import horovod.core as hvd
hvd.init()
hvd.allreduce(np.ones(4), name="first")
open(os.path.join(sys.argv[1], str(hvd.rank())), "w").write(str(os.getpid()))
for step in range(10**9): hvd.allreduce(np.ones(100000), name="gradients")
"""


def command_line(name: str, *words: str) -> list[str]:
    """mpirun of four ranks on two hosts; Open MPI forwards what it is told to."""
    mpirun, python = mpi(name)
    forwarded = [word for one in FORWARDED for word in ("-x", one)] if name.startswith("openmpi") else []
    return [*mpirun, *MPI_SLOTS[name], *forwarded, python, *words]


@pytest.mark.parametrize("name", MPI_SLOTS)
def test_results_through_mpi_are_those_of_the_reference(cluster: MakeCluster, tmp_path: Path, name: str) -> None:
    made = cluster(2)
    made.trust()
    folder = Folder(tmp_path)
    env = environment(folder.home, PYTHONPATH=str(ROOT / "tests"), **BY_MPI)
    dtypes = FEWER if name in ("intel", "openmpi4") else DTYPES
    done = made.hosts[0].run(*command_line(name, "-m", "support.contract_rows", *dtypes), env=env, timeout_s=250)
    ended = re.findall(r"(\d) of 4 over mpi: \d+ rows", done.stdout)  # lines of ranks may run into each other
    assert (done.returncode, sorted(ended)) == (0, ["0", "1", "2", "3"]), done
    assert "expected" not in done.stdout, done.stdout


class Training:
    """A world that goes on until something happens to it."""

    def __init__(self, hosts: list[Host], folder: Folder, name: str, env: dict[str, str]) -> None:
        script = folder.path / "train.py"
        script.write_text(TRAIN)
        self.met = folder.new()
        command = command_line(name, str(script), str(self.met))
        self.output = folder.path / "output"
        with self.output.open("wb") as output:
            self.process = hosts[0].popen(*command, env=env, stdout=output, stderr=output)
        while len(list(self.met.iterdir())) < 4:
            assert self.process.poll() is None, self.output.read_text()
            time.sleep(0.05)

    def text_after_the_end(self, within_s: float) -> str:
        try:
            self.process.wait(within_s)
        finally:
            self.process.kill()
            self.process.wait()
        assert self.process.returncode != 0
        return self.output.read_text()


@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_a_stopped_rank_ends_a_job_through_mpi_with_the_cause(cluster: MakeCluster, tmp_path: Path, name: str) -> None:
    made = cluster(2)
    made.trust()
    folder = Folder(tmp_path)
    training = Training(made.hosts, folder, name, environment(folder.home, **BY_MPI))
    (stopped,) = [pid for pid, words in made.hosts[0].processes().items() if "train.py" in words and of_rank(pid, 1)]
    os.kill(stopped, signal.SIGSTOP)
    told = training.text_after_the_end(4 + 3 + SLACK_S)
    assert "`allreduce.gradients` failed: rank 1 (process" in told, told
    assert "was stopped by a signal" in told, told


def test_a_host_without_power_ends_a_job_through_mpi(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(2)
    made.trust()
    folder = Folder(tmp_path)
    env = environment(folder.home, HOROVOD_LOST_TIMEOUT_SECONDS="3", **BY_MPI)
    training = Training(made.hosts, folder, "mpich", env)
    made.hosts[1].power_off()
    deadline = time.monotonic() + 3 + 3 + SLACK_S
    while any("train.py" in words for words in made.hosts[0].processes().values() if "mpirun" not in words):
        assert time.monotonic() < deadline, training.output.read_text()
        time.sleep(0.05)
    training.process.kill()
    training.process.wait()
    assert re.search(r"rank [23] has given no sign of life for 3", training.output.read_text())


def of_rank(pid: int, rank: int) -> bool:
    """Whether this process is that rank of an MPI job."""
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(one in environ for one in (b"PMI_RANK=%d" % rank, b"OMPI_COMM_WORLD_RANK=%d" % rank))
