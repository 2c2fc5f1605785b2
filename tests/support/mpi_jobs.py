# SPDX-License-Identifier: Apache-2.0
"""Jobs of mpirun over two hosts whose data goes through MPI."""

from __future__ import annotations

from support.started import MPI_SLOTS, mpi

__all__ = ["BY_MPI", "command_line"]

BY_MPI = {"HOROVOD_CPU_OPERATIONS": "mpi"}
_FORWARDED = ["HOME", "OMP_NUM_THREADS", "PYTHONPATH", *BY_MPI]


def command_line(name: str, *words: str) -> list[str]:
    """mpirun of four ranks on two hosts; Open MPI forwards what it is told to."""
    mpirun, python = mpi(name)
    forwarded = [word for one in _FORWARDED for word in ("-x", one)] if name.startswith("openmpi") else []
    return [*mpirun, *MPI_SLOTS[name], *forwarded, python, *words]
