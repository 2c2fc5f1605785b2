# SPDX-License-Identifier: Apache-2.0
"""Data through MPI, over two hosts of two ranks: whatever fails, the job ends, and the cause is named."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster, Host, MakeCluster
from support.extent import SLACK_S
from support.mpi_jobs import BY_MPI, command_line
from support.started import MPI_SLOTS, Folder, environment

DIED_S, FROZEN_S, LOST_S = 0.5, 4.0, 6.0  # until it is noticed
ENDED_S = 3.0  # later

# What the MPIs leave behind if nobody calls MPI_Finalize.
OF_MPI = "/dev/shm/mpich_shm_*"

# Says when it has met the others, goes on for ever, and leaves the error that it gets.
TRAIN = """
import os, sys
import numpy as np
import horovod.core as hvd
folder = sys.argv[1]
def write(name, text):
    with open(os.path.join(folder, "new" + name), "w") as file:
        file.write(text)
    os.rename(os.path.join(folder, "new" + name), os.path.join(folder, name))
hvd.init()
rank = str(hvd.rank())
hvd.allreduce(np.ones(4), name="first")
write(rank, str(os.getpid()))
try:
    for step in range(10**9): hvd.allreduce(np.ones(100000), name="gradients")
except Exception as error:
    write("error" + rank, str(error))
    raise
"""


class Training:
    """A world over two hosts that goes on until something happens to it."""

    def __init__(self, made: Cluster, folder: Folder, name: str) -> None:
        made.trust()
        self.made, self.hosts = made, made.hosts
        script = folder.path / "train.py"
        script.write_text(TRAIN)
        self.met = folder.new()
        self.output = folder.path / "output"
        command = command_line(name, str(script), str(self.met))
        with self.output.open("wb") as output:
            self.process = self.hosts[0].popen(
                *command, env=environment(folder.home, **BY_MPI), stdout=output, stderr=output
            )
        while len(list(self.met.glob("[0-9]"))) < 4:
            assert self.process.poll() is None, self.output.read_text()
            time.sleep(0.05)
        self.changed_s = time.monotonic()

    def ranks_on(self, host: Host) -> list[int]:
        """The pids of its ranks that still run."""
        return [pid for pid, words in host.processes().items() if re.match(r"\S*python\S* \S*train.py", words)]

    def rank(self, rank: int) -> int:
        """Its pid."""
        (pid,) = [pid for host in self.hosts for pid in self.ranks_on(host) if of_rank(pid, rank)]
        return pid

    def errors_after_the_end(self, *hosts: Host, within_s: float) -> dict[int, str]:
        """What the ranks have got, when all of these hosts have ended."""
        deadline = self.changed_s + within_s + SLACK_S
        while any(self.ranks_on(host) for host in hosts):
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)
        return {int(path.name[5:]): path.read_text() for path in self.met.glob("error*")}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for host in self.hosts:
            for pid in host.processes():  # mpirun's own, which hears nothing of a host that is gone
                os.kill(pid, signal.SIGKILL)


def of_rank(pid: int, rank: int) -> bool:
    """Whether this process is that rank of an MPI job."""
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(one in environ for one in (b"PMI_RANK=%d" % rank, b"OMPI_COMM_WORLD_RANK=%d" % rank))


@pytest.fixture(
    params=[pytest.param(name, marks=[] if name == "mpich" else pytest.mark.thorough) for name in MPI_SLOTS]
)
def training(request: pytest.FixtureRequest, cluster: MakeCluster, tmp_path: Path) -> Iterator[Training]:
    job = Training(cluster(2), Folder(tmp_path), request.param)
    yield job
    job.end()
    for host in job.hosts:
        if host.is_on():
            host.run("sh", "-c", f"rm -f {OF_MPI}", check=True)


def test_a_killed_rank_ends_a_job_through_mpi(training: Training) -> None:
    """mpirun may be faster than we are: it ends all ranks, in any order, and says why by itself."""
    os.kill(training.rank(1), signal.SIGKILL)
    training.changed_s = time.monotonic()
    errors = training.errors_after_the_end(*training.hosts, within_s=DIED_S + ENDED_S)
    assert training.process.wait(ENDED_S + SLACK_S) != 0
    for error in errors.values():
        assert re.search(r"rank \d (\(process \d+\) died|is gone)", error), errors
    named = any("rank 1 " in error for error in errors.values())
    said = training.output.read_text()
    assert named or re.search(r"signal 9|SIGNAL: 9|EXIT CODE: 9", said), (errors, said)


def test_a_stopped_rank_ends_a_job_through_mpi(training: Training) -> None:
    stopped = training.rank(1)
    os.kill(stopped, signal.SIGSTOP)
    training.changed_s = time.monotonic()
    errors = training.errors_after_the_end(training.hosts[1], within_s=FROZEN_S + ENDED_S)
    assert set(errors) >= {0, 2, 3}, (errors, training.output.read_text())
    for error in errors.values():
        assert re.search(r"`allreduce.gradients` failed: rank 1 \(process \d+\) was stopped by a signal", error), errors
    assert training.process.wait(ENDED_S + SLACK_S) != 0


@pytest.mark.thorough
def test_a_host_without_power_ends_a_job_through_mpi(training: Training) -> None:
    training.hosts[1].power_off()
    training.changed_s = time.monotonic()
    errors = training.errors_after_the_end(training.hosts[0], within_s=LOST_S + ENDED_S)
    assert set(errors) == {0, 1}, (errors, training.output.read_text())
    for error in errors.values():
        assert re.search(r"rank [23] (has given no sign of life for 5|is unreachable)", error), errors


def test_a_host_that_is_cut_off_ends_a_job_through_mpi_on_both_sides(training: Training) -> None:
    """MPI_Abort comes back there with some MPIs, since it cannot reach mpirun."""
    training.hosts[1].link(False)
    training.changed_s = time.monotonic()
    errors = training.errors_after_the_end(*training.hosts, within_s=LOST_S + ENDED_S)
    assert set(errors) == {0, 1, 2, 3}, (errors, training.output.read_text())
    for rank, error in errors.items():
        lost = "[23]" if rank < 2 else "[01]"
        assert re.search(rf"rank {lost} (has given no sign of life for 5|is unreachable)", error), errors
