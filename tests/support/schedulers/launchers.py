# SPDX-License-Identifier: Apache-2.0
"""Every launcher that can start four ranks on 2 or 4 hosts: its command line, and what it needs on the hosts.

Within `ready_for(launcher, made)`, run the lines of `command_lines(launcher, made.hosts, ["train.py"])`, all at a time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import pytest

from support.cluster import Cluster, Host
from support.schedulers import slurm
from support.schedulers.mpi_jobs import BY_MPI, command_line
from support.started import MPI_SLOTS, mpi, mpi_slots, not_run

__all__ = ["DATA", "LAUNCHERS", "OF_MPI", "command_lines", "ready_for"]

DATA = "-data"  # of an MPI: the data goes through it as well
OF_MPI = [*MPI_SLOTS, *(name + DATA for name in MPI_SLOTS)]
LAUNCHERS = ["horovodrun", "horovodrun-srun", "horovodrun-mpi", *OF_MPI, "srun", "torchrun"]
RANKS = 4
_KEEPALIVE = {  # as docs/guides/mpi.md has it
    f"{prefix}_MCA_oob_tcp_keepalive_{name}": value
    for prefix in ("OMPI", "PRTE")
    for name, value in {"time": "1", "intvl": "1", "probes": "3"}.items()
}
_HOROVODRUN = [sys.executable, "-m", "horovod.launcher", "-np", str(RANKS)]


@contextlib.contextmanager
def ready_for(launcher: str, made: Cluster) -> Iterator[None]:
    """Until its end, the hosts have what this launcher needs: trust in each other's keys, and Slurm."""
    made.trust()
    with open(made.folder / "ssh" / "config", "a") as config:
        config.write("ServerAliveInterval 2\nServerAliveCountMax 3\n")  # as docs/guides/mpi.md has it
    if "srun" not in launcher:
        yield
        return
    if reason := slurm.lacking():
        not_run(reason)
    with slurm.Slurm(made, made.hosts):
        yield


def command_lines(
    launcher: str, hosts: Sequence[Host], job: Sequence[str]
) -> Iterator[tuple[Host, list[str], dict[str, str]]]:
    """Starts four ranks of the Python script `job`, as many on each host. Where each line runs, with which variables.

    The ranks of an MPI have its own Python, which has no framework.
    """
    first, each = hosts[0], RANKS // len(hosts)
    slots = ["-H", ",".join(f"{host.name}:{each}" for host in hosts)]
    nodes = [f"-N{len(hosts)}", f"--ntasks-per-node={each}"]
    match launcher:
        case "horovodrun":
            yield first, [*_HOROVODRUN, *slots, sys.executable, *job], {}
        case "horovodrun-srun":
            yield first, ["salloc", "--quiet", *nodes, *_HOROVODRUN, sys.executable, *job], {}
        case "horovodrun-mpi":
            mpirun, python = mpi("openmpi")
            flags = ["--mpi", "--mpi-args=--oversubscribe", *slots]
            yield first, [*mpirun[:2], *_HOROVODRUN, *flags, python, *job], {}
        case "srun":
            yield first, ["srun", "--kill-on-bad-exit", *nodes, sys.executable, *job], {}
        case "torchrun":
            pytest.importorskip("torch", reason="not run: torch is not installed")
            flags = [f"--nnodes={len(hosts)}", f"--nproc-per-node={each}"]
            flags += ["--rdzv-backend=c10d", "--rdzv-endpoint=host0:29400"]
            for host in hosts:
                yield host, [sys.executable, "-m", "torch.distributed.run", *flags, *job], {}
        case name if name.endswith(DATA):
            words = command_line(name.removesuffix(DATA), *job, hosts=len(hosts))
            yield first, words, {**_KEEPALIVE, **BY_MPI}
        case name:
            mpirun, python = mpi(name)
            yield first, [*mpirun, *mpi_slots(name, len(hosts)), python, *job], _KEEPALIVE
