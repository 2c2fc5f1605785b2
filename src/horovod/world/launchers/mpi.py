# SPDX-License-Identifier: Apache-2.0
"""Rank 0's offer by MPI, through mpi4py.

The messages are point to point, so that a rank waits for rank 0 alone, with a time limit, and the error names who is
missing. MPI_Init itself has no time limit: with most MPIs it waits until all ranks have called it.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from horovod.core.exceptions import StartError
from horovod.world import mpi
from horovod.world.launchers.base import Started
from horovod.world.launchers.offer import LONGEST_BYTES
from horovod.world.topology import ranks_text

__all__ = ["give", "opened", "take"]

_TAG = 0x4856


def opened(started: Started, deadline: float) -> Any:
    """MPI's world, in which the ranks are those of `started`; None if there is no MPI to be had.

    Raises StartError if this MPI does not see the other ranks: it is another one than the launcher's. After `deadline`
    the process ends (world/mpi.py).
    """
    # A child by multiprocessing inherits its parent's variables, and must not take its place in MPI.
    if not started.has_mpi or multiprocessing.parent_process() is not None:
        return None
    MPI = mpi.opened(deadline)
    if MPI is None:
        return None
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if (rank, size) != (started.rank, started.size):
        raise StartError(
            f"{started.launcher} started this process as rank {started.rank} of {started.size}, but to the MPI that "
            f"mpi4py uses, {mpi.library_name(MPI)}, it is rank {rank} of {size}: it is another MPI than the "
            "launcher's\n"
            "hint: start the job with that MPI's own mpirun, or install mpi4py for the launcher's MPI; with "
            "HOROVOD_RENDEZVOUS_DIRECTORY set, mpi4py is not asked",
            "start-mpi",
        )
    return MPI.COMM_WORLD


def give(comm: Any, message: bytes, deadline: float) -> None:
    """Sends it to all other ranks. Raises StartError that names those that have not taken it in time."""
    size = comm.Get_size()
    sent = {rank: comm.Isend(message, dest=rank, tag=_TAG) for rank in range(1, size)}
    if absent := mpi.wait(sent, deadline):
        raise StartError(
            f"rank 0 waited in init for {ranks_text(absent)} of {size} to take a message by MPI\n"
            "hint: look at the output of these ranks; HOROVOD_START_TIMEOUT (seconds) lets init wait longer",
            "start-timeout",
        )


def take(comm: Any, deadline: float) -> bytes:
    """Rank 0's message. Raises StartError if it does not come in time."""
    buffer = bytearray(LONGEST_BYTES)
    request = comm.Irecv(buffer, source=0, tag=_TAG)
    if mpi.wait({0: request}, deadline):
        request.Cancel()
        request.Free()
        raise StartError(
            "rank 0, which tells the others where they meet, has not called init in time\n"
            "hint: look at the output of rank 0; HOROVOD_START_TIMEOUT (seconds) lets init wait longer",
            "start-timeout",
        )
    return bytes(buffer).rstrip(b"\0")  # JSON has none
