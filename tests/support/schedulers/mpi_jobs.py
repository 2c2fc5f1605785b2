# SPDX-License-Identifier: Apache-2.0
"""Jobs of mpirun over several hosts whose data goes through MPI."""

from __future__ import annotations

from support.started import mpi, mpi_slots

__all__ = ["BY_MPI", "command_line"]

BY_MPI = {"HOROVOD_CPU_OPERATIONS": "mpi"}
_FORWARDED = ["HOME", "OMP_NUM_THREADS", "PYTHONPATH", *BY_MPI]


def command_line(name: str, *words: str, hosts: int = 2) -> list[str]:
    """mpirun of four ranks on this many hosts; Open MPI forwards what it is told to."""
    mpirun, python = mpi(name)
    forwarded = [word for one in _FORWARDED for word in ("-x", one)] if name.startswith("openmpi") else []
    return [*mpirun, *mpi_slots(name, hosts), *forwarded, python, *words]
