# SPDX-License-Identifier: Apache-2.0
"""Whatever starts the ranks, over two hosts: a failure is noticed in time, named by the survivors, and leaves nothing.

REPEAT=10 runs each case ten times; a part of the cases runs daily, all with THOROUGH=1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.cluster import Cluster, Host
from support.extent import SLACK_S
from support.schedulers.launchers import DATA, LAUNCHERS, OF_MPI, command_lines, ready_for
from support.started import Folder, environment

# Each rank says when it trains, and keeps what it was told.
TRAIN = """
import os, sys
from pathlib import Path
import numpy as np
import horovod.core as hvd
from horovod.common.exceptions import HorovodInternalError
folder = Path(sys.argv[1])
hvd.init()
hvd.allreduce(np.ones(4), name="first")
def say(kind, text):  # the whole of it at once
    (folder / f"part.{hvd.rank()}").write_text(text)
    (folder / f"part.{hvd.rank()}").rename(folder / f"{kind}.{hvd.rank()}")
say("pid", f"{os.uname().nodename} {os.getpid()}")
try:
    while True:
        hvd.allreduce(np.ones(100_000), name="gradients")
except HorovodInternalError as error:
    say("told", str(error))
    raise
"""
DAEMONS = ("slurmctld", "slurmd", "slurmscriptd", "slurmstepd")
ENDED_S = 3.0  # after a failure has been noticed


class World:
    """Four ranks of TRAIN on two hosts, which some launcher on the first one has started."""

    def __init__(self, hosts: Sequence[Host], folder: Folder, launcher: str) -> None:
        self.one, self.two = hosts
        self.launcher = launcher
        self._folder = folder
        self.results = folder.new()
        self.said = self.results / "said"  # by all, and by the launcher
        self._processes: list[subprocess.Popen[bytes]] = []
        self.pids: dict[int, int] = {}
        self.on_two: list[int] = []

    def begin(self) -> None:
        """Until all ranks train."""
        script = self._folder.path / "train_until_told.py"
        script.write_text(TRAIN)
        for host, words, more in command_lines(self.launcher, (self.one, self.two), [str(script), str(self.results)]):
            command = host.command(*words, directory=self._folder.path)
            env = environment(self._folder.home, TMPDIR="/tmp", **more)
            with open(self.said, "a") as said:
                null = subprocess.DEVNULL
                self._processes.append(subprocess.Popen(command, env=env, stdin=null, stdout=said, stderr=said))
        self.wait_until(lambda: all(self._file("pid", rank).exists() for rank in range(4)), "all ranks train")
        self.pids = {rank: self._outer_pid(rank) for rank in range(4)}
        self.on_two = [rank for rank in range(4) if self._host_of(rank) == self.two.name]

    def _file(self, kind: str, rank: int) -> Path:
        return self.results / f"{kind}.{rank}"

    def _host_of(self, rank: int) -> str:
        return self._file("pid", rank).read_text().split()[0]

    def _outer_pid(self, rank: int) -> int:
        """Of this rank's process, outside of its host's namespace."""
        name, inner = self._file("pid", rank).read_text().split()
        host = self.one if name == self.one.name else self.two
        for pid in host.processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                if re.search(rf"^NSpid:.*\t{inner}$", status, re.MULTILINE):
                    return pid
        raise AssertionError(f"no process of rank {rank}: {inner} on {name}")

    def wait_until(self, condition: Callable[[], bool], what: str, within_s: float = 60.0) -> float:
        """Seconds until it holds."""
        began_s = time.monotonic()
        while not condition():
            assert time.monotonic() - began_s < within_s + SLACK_S, f"not in {within_s} s: {what}\n{self.shown()}"
            time.sleep(0.01)
        return time.monotonic() - began_s

    def knows(self, rank: int) -> bool:
        """Whether this rank was told, or has ended."""
        return self._file("told", rank).exists() or not self._lives(rank)

    def ranks_have_ended(self) -> bool:
        return not any(map(self._lives, self.pids))

    def _lives(self, rank: int) -> bool:
        """A rank that has ended is a zombie as long as what has started it does not look at it."""
        try:
            return not re.search(r"^State:\tZ", Path(f"/proc/{self.pids[rank]}/status").read_text(), re.MULTILINE)
        except OSError:
            return False

    def told(self) -> dict[int, str]:
        return {int(path.suffix[1:]): path.read_text() for path in self.results.glob("told.*")}

    def left(self) -> dict[int, str]:
        """What still runs on the hosts that are up."""
        found = {**self.one.processes(), **(self.two.processes() if self.two.is_on() else {})}
        return {pid: command for pid, command in found.items() if not any(one in command for one in DAEMONS)}

    def launcher_pid(self) -> int:
        """Of what has started the ranks: mpirun may be a script that starts it, and salloc is not it."""
        begins = {
            "openmpi": "prterun ",
            "horovodrun-mpi": "prterun ",  # it becomes that
            "openmpi4": "mpirun.openmpi ",
            "mpich": "mpirun ",
            "intel": "mpiexec.hydra ",
            "srun": "srun ",
            "torchrun": f"{sys.executable} -m torch.distributed.run ",
        }.get(self.launcher.removesuffix(DATA), f"{sys.executable} -m horovod.launcher -np")
        return min(pid for pid, command in self.one.processes().items() if command.startswith(begins))

    def shown(self) -> str:
        return f"told: {self.told()}\nleft: {self.left()}\nsaid: {self.said.read_text()[-6000:]}"

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is done to a world, what the survivors are told of it, and how soon."""

    do: Callable[[World], None]
    told: str  # a pattern
    noticed_s: float
    survivors: Callable[[World], list[int]]
    loses_host: bool = False


def last_of_two(world: World) -> int:
    return world.pids[world.on_two[-1]]


def all_but_the_last(world: World) -> list[int]:
    return [rank for rank in range(4) if rank != world.on_two[-1]]


def those_of_one(world: World) -> list[int]:
    return [rank for rank in range(4) if rank not in world.on_two]


LOST = r"rank \d (has given no sign of life|is unreachable|was lost with its host|at \S+ cannot be reached)"
DIED = r"rank \d (\(process \d+\) died|is gone|was killed)"
FAULTS = {
    "killed": Fault(
        lambda world: os.kill(last_of_two(world), signal.SIGKILL),
        DIED,
        0.5,
        all_but_the_last,
    ),
    "frozen": Fault(
        lambda world: os.kill(last_of_two(world), signal.SIGSTOP),
        r"rank \d \(process \d+\) was stopped",
        4.0,
        all_but_the_last,
    ),
    "powered-off": Fault(lambda world: world.two.power_off(), LOST, 6.0, those_of_one, loses_host=True),
    "cut-off": Fault(lambda world: world.two.link(False), LOST, 6.0, those_of_one, loses_host=True),
}
# What ends the ranks when it has noticed a failure, before all of them could say anything.
MAY_BE_FASTER = {*OF_MPI, "horovodrun-mpi", "srun", "torchrun"}
# Its agents give their ranks 30 s after SIGTERM.
RANKS_ENDED_S = {"torchrun": 35.0}
# The launchers themselves, after their ranks: MPIs by the keepalives of their own connections.
LAUNCHER_ENDED_S = 12.0
# They wait for a host that is lost, for ever or until Slurm has given it up. The ranks end.
OUTLIVE_A_LOST_HOST = {"intel": "mpi", "intel-data": "mpi", "srun": "srun ", "torchrun": "torch.distributed.run"}
# What an mpirun says of a killed rank or a lost host, if it was faster than all others; and what Open MPI and Intel MPI
# say, whose calls end a rank that exchanges data with one that is gone.
SAID_BY_MPI = re.compile(
    r"signal 9|SIGNAL: 9|EXIT CODE: 9|Killed|peer process has unexpectedly disconnected|(?i:mpi_errors_are_fatal)|"
    r"lost communication with a remote daemon|Transport endpoint is not connected"
)
# MPI_Isend of MPICH 5.0.2 writes to a request that it has not made if the peer is gone (docs/guides/mpi.md).
CRASHES = {"mpich-data": re.compile("EXIT CODE: 11")}
DAILY = [
    ("killed", "srun"),
    ("killed", "mpich-data"),
    ("frozen", "mpich-data"),
    ("powered-off", "openmpi"),
    ("cut-off", "mpich-data"),
    ("cut-off", "horovodrun-srun"),
]
CASES = [
    pytest.param(fault, launcher, marks=() if (fault, launcher) in DAILY else pytest.mark.thorough)
    for fault in FAULTS
    for launcher in LAUNCHERS
]


@contextlib.contextmanager
def world_of(launcher: str, folder: Path) -> Iterator[World]:
    made = Cluster(2, shared=[folder])
    with made as hosts, ready_for(launcher, made), contextlib.ExitStack() as stack:
        world = World(hosts, Folder(folder), launcher)
        stack.callback(world.end)
        world.begin()
        yield world


@pytest.mark.parametrize("_", range(int(os.environ.get("REPEAT", "1"))))
@pytest.mark.parametrize(("fault", "launcher"), CASES)
def test_a_failure_ends_the_job_in_time(cluster_tools: None, tmp_path: Path, fault: str, launcher: str, _: int) -> None:
    what = FAULTS[fault]
    with world_of(launcher, tmp_path) as world:
        survivors = what.survivors(world)
        what.do(world)
        world.wait_until(lambda: all(world.knows(rank) for rank in survivors), "all survivors know", what.noticed_s)
        world.wait_until(world.ranks_have_ended, "all ranks have ended", RANKS_ENDED_S.get(launcher, ENDED_S))
        left = OUTLIVE_A_LOST_HOST.get(launcher, "\n") if what.loses_host else "\n"
        world.wait_until(lambda: all(left in one for one in world.left().values()), "all have ended", LAUNCHER_ENDED_S)
        told = world.told()
        assert launcher in MAY_BE_FASTER or set(survivors) <= set(told), world.shown()
        # A launcher that has lost a host ends its ranks one by one: the later ones may hear of the first one's end.
        others_end = what.loses_host and launcher in MAY_BE_FASTER
        for text in told.values():
            assert re.search(f"{what.told}|{DIED}" if others_end else what.told, text), world.shown()
        said = world.said.read_text()
        assert told or SAID_BY_MPI.search(said) or CRASHES.get(launcher, SAID_BY_MPI).search(said), world.shown()


@pytest.mark.parametrize("_", range(int(os.environ.get("REPEAT", "1"))))
@pytest.mark.parametrize(
    "launcher", [pytest.param(one, marks=() if one == "openmpi" else pytest.mark.thorough) for one in LAUNCHERS]
)
def test_the_end_of_the_launcher_ends_the_ranks(cluster_tools: None, tmp_path: Path, launcher: str, _: int) -> None:
    with world_of(launcher, tmp_path) as world:
        os.kill(world.launcher_pid(), signal.SIGKILL)
        world.wait_until(lambda: not world.left(), "all have ended", 6.0 + ENDED_S)
