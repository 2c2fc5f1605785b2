# SPDX-License-Identifier: Apache-2.0
"""mpirun of MPICH and of Intel MPI, which is Hydra."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from horovod.world.launchers.base import Environment, Started, numbers

__all__ = ["job_of_proxy", "recognise"]

_ADDRESS_FLAG = "--control-port"  # where a host's proxy connects to: the job's mpirun


def recognise(environment: Environment) -> Started | None:
    """Slurm's PMI sets PMI_RANK as well, but nothing about local ranks."""
    found = numbers(environment, "PMI_RANK", "PMI_SIZE")
    if found is None or "MPI_LOCALRANKID" not in environment:
        return None
    key = environment.get("I_MPI_HYDRA_UUID", "") or _job()
    return Started("mpirun of MPICH or Intel MPI", *found, key=key, has_mpi=True)


def _job() -> str:
    """MPICH's environment does not name the job. The command line of Hydra's proxy, which has started us, does."""
    pid = os.getppid()
    with contextlib.suppress(OSError, IndexError, ValueError):  # an ancestor of another user, or none any more
        while pid > 1:
            if job := job_of_proxy(Path(f"/proc/{pid}/cmdline").read_bytes()):
                return job
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return ""


def job_of_proxy(command_line: bytes) -> str:
    """The address of mpirun on a proxy's command line, as /proc has it; empty if that is none."""
    words = command_line.decode(errors="replace").split("\0")
    if not os.path.basename(words[0]).startswith("hydra_"):
        return ""
    return next((word for flag, word in zip(words, words[1:], strict=False) if flag == _ADDRESS_FLAG), "")
