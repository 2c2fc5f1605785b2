# SPDX-License-Identifier: Apache-2.0
"""horovodrun inside a job of Slurm: srun starts its agents, and nothing of the job is left on any host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster
from support.elastic import elastic_jobs
from support.jobs import GONE_S, python
from support.pages import ROOT, fenced
from support.patience import patiently, wait_until
from support.schedulers import slurm as slurm_support
from support.schedulers.slurm import Slurm

HOROVODRUN = [sys.executable, "-m", "horovod.launcher"]
SCRIPT = """
import horovod.core as hvd
hvd.init()
kept = [name for name in ("SLURM_PROCID", "SLURM_STEP_ID") if name in os.environ]
print(os.uname().nodename, hvd.rank(), "of", hvd.size(), os.getcwd(), os.environ["WORD"], kept)
"""
WAIT = """
import subprocess; subprocess.Popen(['sleep', '10000'], start_new_session=True)
import horovod.core as hvd
hvd.init()
if os.path.exists("die") and rank == 3: os.kill(os.getpid(), 9)
ready()
signal.pause()
"""


class Inside:
    """Two hosts with Slurm, and a folder that both have."""

    def __init__(self, hosts: list[Host], folder: Path) -> None:
        self.one, self.two = hosts
        self.folder = folder
        path = os.pathsep.join(filter(None, sys.path))
        self.environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
        self.environment["WORD"] = "a 'b' $c"

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.one.command(*words, directory=self.folder),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, list[str], str]:
        with self.start(*words) as process:
            out, err = patiently(lambda left_s: process.communicate(timeout=left_s))
        return process.returncode, sorted(out.splitlines()), err

    def own(self, host: Host) -> dict[int, str]:
        """What runs there besides Slurm's daemons."""
        daemons = ("slurmctld", "slurmd", "slurmscriptd")
        return {pid: command for pid, command in host.processes().items() if not any(one in command for one in daemons)}

    def assert_empty(self) -> None:
        wait_until(lambda: not self.own(self.one) and not self.own(self.two), limit_s=GONE_S)
        for host in (self.one, self.two):
            assert host.run("sh", "-c", "ls /tmp | grep ^hvd-; ls /dev/shm").stdout == ""


@pytest.fixture
def inside(cluster: MakeCluster, tmp_path: Path) -> Iterator[Inside]:
    reason = slurm_support.lacking()
    if reason is not None:
        (pytest.fail if os.environ.get("REQUIRE_CLUSTER") == "1" else pytest.skip)(f"not run: {reason}")
    made = cluster(2)
    with Slurm(made, made.hosts):
        yield Inside(made.hosts, tmp_path)


ALLOCATE = ["salloc", "--quiet", "-N2", "--ntasks-per-node=2"]


def test_hosts_slots_and_the_way_come_from_slurm(inside: Inside) -> None:
    code, out, err = inside.run(*ALLOCATE, *HOROVODRUN, "--verbose", *python(SCRIPT))
    assert code == 0, err
    place = f"{inside.folder} {inside.environment['WORD']} []"  # Slurm's variables of the agent's step are not theirs
    assert out == [f"[{rank}]<stdout>:host{rank // 2} {rank} of 4 {place}" for rank in range(4)]
    said = err.splitlines()
    assert said[0].startswith("horovodrun: hosts host0:2,host1:2, from Slurm job ")
    assert said[1] == "horovodrun: other hosts are reached by srun"
    inside.assert_empty()

    # From a batch script, with fewer ranks than tasks, and by ssh if that is asked for.
    script = inside.folder / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=2 --output=out --wait\n"
        f'exec "$PYTHON" -m horovod.launcher -np 3 --start-with ssh --verbose "$PYTHON" -c {SMALL!r}\n'
    )
    inside.environment["PYTHON"] = sys.executable
    code, _, err = inside.run("sbatch", str(script))
    lines = (inside.folder / "out").read_text().splitlines()
    assert code == 0 and "horovodrun: other hosts are reached by ssh" in lines, lines
    assert sorted(line for line in lines if line.startswith("[")) == [
        f"[{rank}]<stdout>:host{rank // 2} {rank} of 3" for rank in range(3)
    ]
    inside.assert_empty()


SMALL = 'import os; print(os.uname().nodename, os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"])'


@pytest.mark.thorough
def test_the_drills_take_the_hosts_of_the_job(inside: Inside) -> None:
    code, out, err = inside.run(*ALLOCATE, *HOROVODRUN, "--drill")
    assert code == 0, (out, err)
    assert sum(line.startswith("ok ") for line in out) == 8 and any("1 pair: " in line for line in out), out
    inside.assert_empty()


def test_the_end_of_a_rank_or_of_the_launcher_ends_all(inside: Inside) -> None:
    job = [*ALLOCATE, *HOROVODRUN, *python(WAIT)]
    (inside.folder / "die").touch()
    code, _, err = inside.run(*job)
    assert code == 137 and "horovodrun: rank 3 on host host1 was killed by SIGKILL" in err, err
    inside.assert_empty()
    (inside.folder / "die").unlink()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with inside.start(*job) as process:
            read_until(process, "ready", count=4)
            (launcher,) = [pid for pid, command in inside.own(inside.one).items() if is_launcher(command)]
            os.kill(launcher, number)
            patiently(lambda left_s, process=process: process.communicate(timeout=left_s))
        if (
            number == signal.SIGKILL
        ):  # the allocation ends with it: Slurm kills all of the other node at once, the keeper, too
            inside.two.run("sh", "-c", "rm -r /tmp/hvd-*")
        inside.assert_empty()


def test_scancel_leaves_nothing(inside: Inside) -> None:
    """It asks all processes on the other node to end, and Slurm kills the rest when the keeper has ended."""
    script = inside.folder / "job.sh"
    script.write_text('#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=2 --output=out --parsable\nexec "$@"\n')
    code, out, err = inside.run("sbatch", str(script), *HOROVODRUN, *python(WAIT))
    assert code == 0, err
    output = inside.folder / "out"
    wait_until(lambda: output.exists() and output.read_text().count("ready") == 4)
    inside.one.run("scancel", out[0], check=True)
    inside.assert_empty()


def test_slurms_signals_reach_the_ranks_of_all_hosts(inside: Inside) -> None:
    """As those of --signal=USR1@60, which the steps get."""
    tells = "signal.signal(signal.SIGUSR1, lambda *_: print('told', flush=True)); ready()\nwhile True: signal.pause()"
    with inside.start(*ALLOCATE, *HOROVODRUN, *python(tells)) as process:
        read_until(process, "ready", count=4)
        job = inside.one.run("squeue", "--noheader", "--format", "%i").stdout.strip()
        inside.one.run("scancel", "--signal=USR1", job, check=True)
        read_until(process, "told", count=4)
        inside.one.run("scancel", job, check=True)
        out, err = patiently(lambda left_s: process.communicate(timeout=left_s))
    # Once each; an agent of a busy machine may report it more than 2 s later, and its ranks get it again.
    assert out.count("told") <= 2, out + err
    inside.assert_empty()


@pytest.mark.thorough
def test_an_elastic_job_follows_its_allocation(inside: Inside) -> None:
    (inside.folder / "train.py").write_text(elastic_jobs.SCRIPT)
    discovery = inside.folder / "nodes.sh"
    (shown,) = [block for block in fenced(ROOT / "docs" / "guides" / "slurm.md") if "scontrol" in block]
    discovery.write_text(shown)
    discovery.chmod(0o755)
    elastic = ["-np", "4", "--min-np", "1", "--host-discovery-script", str(discovery)]
    with inside.start(*ALLOCATE, *HOROVODRUN, *elastic, sys.executable, "train.py") as process:
        read_until(process, "enter ", " 4 ", count=4)
        job = inside.one.run("squeue", "--noheader", "--format", "%i").stdout.strip()
        inside.one.run("scontrol", "update", f"JobId={job}", "NumNodes=1", check=True)
        read_until(process, "enter ", " 2 ", count=2)
        (inside.folder / "end").touch()
        out, err = patiently(lambda left_s: process.communicate(timeout=left_s))
    assert process.returncode == 0 and out.count("finished") == 2 and out.count("True") == 2, out + err
    inside.assert_empty()


def read_until(process: subprocess.Popen[str], *words: str, count: int) -> None:
    assert process.stdout is not None and process.stderr is not None
    while count:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        count -= all(word in line for word in words)


def is_launcher(command: str) -> bool:
    return command.split()[1:3] == ["-m", "horovod.launcher"]


def test_a_node_without_python_is_named_before_anything_starts(inside: Inside) -> None:
    inside.two.hide(Path(sys.executable).parent)
    code, out, err = inside.run(*ALLOCATE, *HOROVODRUN, "touch", str(inside.folder / "started"))
    assert (code, out) == (1, [])
    assert f"  host1 has no Python at {sys.executable}\n" in err
    assert not (inside.folder / "started").exists()
    code, _, err = inside.run(*HOROVODRUN, "-np", "2", "-H", "host1:2", "--start-with", "srun", "true")
    assert code == 1 and "  host1 cannot be reached by srun: srun: error: " in err, err
