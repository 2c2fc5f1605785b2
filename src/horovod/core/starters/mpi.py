# SPDX-License-Identifier: Apache-2.0
"""Rank 0's offer by MPI, through mpi4py; and how MPI ends in a process in which it began for us.

The messages are point to point, so that a rank waits for rank 0 alone, with a time limit, and the error names who is
missing. MPI_Init itself has no time limit: with most MPIs it waits until all ranks have called it.
"""

from __future__ import annotations

import atexit
import importlib.util
import multiprocessing
import os
import sys
import threading
import time
from typing import Any

from horovod.core.exceptions import StartError
from horovod.core.starters.base import Started
from horovod.core.starters.offer import LONGEST_BYTES
from horovod.core.topology import ranks_text

__all__ = ["abort_at_exit", "give", "is_initialized", "opened", "take"]

_TAG = 0x4856
_LOOK_S = 0.002
_GRACE_S = 1.0  # for the other ranks, to say what they have got, as horovodrun gives it
_world_failed = threading.Event()


def opened(started: Started) -> Any:
    """mpi4py.MPI, initialised, with the ranks that `started` has; None if there is none to be had.

    Raises StartError if this MPI does not see the other ranks: it is another one than the launcher's.
    """
    # What the script starts by multiprocessing inherits its parent's variables, and must not take its place in MPI.
    if not started.has_mpi or multiprocessing.parent_process() is not None:
        return None
    MPI = _imported()
    if MPI is None or MPI.Is_finalized():
        return None
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        _finalize_at_exit(MPI)
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if (rank, size) != (started.rank, started.size):
        library = MPI.Get_library_version().strip("\0").splitlines()[0].strip()
        raise StartError(
            f"{started.launcher} started this process as rank {started.rank} of {started.size}, but to the MPI that "
            f"mpi4py uses, {library}, it is rank {rank} of {size}: it is another MPI than the launcher's\n"
            "hint: start the job with that MPI's own mpirun, or install mpi4py for the launcher's MPI; with "
            "HOROVOD_RENDEZVOUS_DIRECTORY set, mpi4py is not asked",
            "start-mpi",
        )
    return MPI


def is_initialized() -> bool:
    """Whether mpi4py's MPI runs in this process, whoever initialised it."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized()


def abort_at_exit() -> None:
    """The world has failed: no MPI_Finalize will ever return. Concerns an MPI that began here only."""
    _world_failed.set()


def give(MPI: Any, size: int, message: bytes, deadline: float) -> None:
    """Sends it to all other ranks. Raises StartError that names those that have not taken it in time."""
    sent = {rank: MPI.COMM_WORLD.Isend([message, MPI.BYTE], dest=rank, tag=_TAG) for rank in range(1, size)}
    while sent := {rank: request for rank, request in sent.items() if not request.Test()}:
        if time.monotonic() > deadline:
            raise StartError(
                f"rank 0 waited in init for {ranks_text(sorted(sent))} of {size} to take a message by MPI\n"
                "hint: look at the output of these ranks; HOROVOD_START_TIMEOUT (seconds) lets init wait longer",
                "start-timeout",
            )
        time.sleep(_LOOK_S)  # MPI has no wait with a time limit


def take(MPI: Any, deadline: float) -> bytes:
    """Rank 0's message. Raises StartError if it does not come in time."""
    buffer = bytearray(LONGEST_BYTES)
    status = MPI.Status()
    request = MPI.COMM_WORLD.Irecv([buffer, MPI.BYTE], source=0, tag=_TAG)
    while not request.Test(status):
        if time.monotonic() > deadline:
            request.Cancel()
            request.Free()
            raise StartError(
                "rank 0, which tells the others where they meet, has not called init in time\n"
                "hint: look at the output of rank 0; HOROVOD_START_TIMEOUT (seconds) lets init wait longer",
                "start-timeout",
            )
        time.sleep(_LOOK_S)
    return bytes(buffer[: status.Get_count(MPI.BYTE)])


def _imported() -> Any:
    if importlib.util.find_spec("mpi4py") is None:
        return None
    import mpi4py

    ours = "mpi4py.MPI" not in sys.modules and mpi4py.rc.finalize is None
    if ours:
        mpi4py.rc.finalize = False  # see _finalize
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # it finds no MPI, so it is of no use
        return None
    if ours and MPI.Is_initialized():
        _finalize_at_exit(MPI)
    return MPI


def _finalize_at_exit(MPI: Any) -> None:
    atexit.register(_finalize, MPI, os.getpid())


def _finalize(MPI: Any, owner: int) -> None:
    """At exit, after hvd.shutdown. If this rank or another one has failed, MPI is to end all.

    MPI_Finalize waits for all ranks. It would never return if one is dead, nor in a rank that is already there if the
    others then end without it.
    """
    if os.getpid() != owner or MPI.Is_finalized():
        return
    if _world_failed.is_set() or getattr(sys, "last_value", None) is not None:  # an exception that nobody caught
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_GRACE_S)
        MPI.COMM_WORLD.Abort(1)
    MPI.Finalize()
