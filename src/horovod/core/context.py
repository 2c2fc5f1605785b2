# SPDX-License-Identifier: Apache-2.0
"""This process' place in the job: init, shutdown, rank and size, and the running generation of the native engine (step
4).

One engine per process, however many frameworks are imported. A Context is one generation: it owns the native context
and the connection to the job's rendezvous. shutdown() stops it; it is freed when the last operation that was started in
it is gone, so that a late synchronize() gets an error and not a crash. All functions may be called from any thread;
init blocks until all ranks are there, shutdown for at most STOP_TIMEOUT_MS.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from horovod.core import bootstrap, communicators, native, stacks
from horovod.core.exceptions import InvalidRequestError, NotInitializedError, StartError
from horovod.core.settings import Settings

STOP_TIMEOUT_MS = 3000
FIRST_CAUSE_TIMEOUT_S = 1.0

# Codes that end the whole generation: the first cause in the job is the one to show.
_FATAL = {native.RANK_LOST: "RANK_LOST", native.RANK_LEFT: "RANK_LEFT", native.ABORTED: "ABORTED"}
_CODE_OF_NAME = {name: code for code, name in _FATAL.items()}


class Entry(int):
    """The address of a prepared request, which is given back to the native core when nobody has it any more."""

    _context: weakref.ref[Context]

    @staticmethod
    def of(context: Context, address: int) -> Entry:
        entry = Entry(address)
        entry._context = weakref.ref(context)
        return entry

    def __del__(self) -> None:
        context = self._context()  # with the context its requests are freed
        if context is not None and os.getpid() == context.process_id:
            context.library.hvd_release_entry(context.pointer, int(self))


class Context:
    """One generation. `entries` and `sighted` are the cache of prepared requests, kept by core/collectives.py."""

    def __init__(self, world: bootstrap.World, settings: Settings) -> None:
        self.world = world
        self.rank: int = world.rank
        self.size: int = world.size
        self.process_id = os.getpid()
        self.entries: dict[tuple[Any, ...], Entry] = {}
        self.sighted: set[tuple[Any, ...]] = set()
        self.sets: dict[int, Any] = {}  # the process sets of core/process_sets.py by number, but the global one
        self.dynamic_process_sets = settings.dynamic_process_sets
        self._places = {0: (world.size, world.rank)}
        self.failure: tuple[int, str, int] | None = None
        self.running = False
        self.library = native.library()
        where = f"{settings.rendezvous_address}:{settings.rendezvous_port}" if world.rendezvous else str(os.getpid())
        self._session = f"{where} {world.generation}"
        self._timelines = 0
        self.pointer = self._start(settings)
        self.running = True
        if settings.timeline and settings.timeline.upper() != "DYNAMIC":
            try:
                self.start_timeline(settings.timeline, settings.timeline_mark_cycles)
            except BaseException:
                self.stop()
                raise

    def _start(self, settings: Settings) -> int:
        world = self.world
        pairs = settings.native_settings()
        native_settings = (native.Setting * len(pairs))(
            *[native.Setting(name.encode(), value.encode()) for name, value in pairs]
        )
        links = (native.Link * len(world.links))(
            *[native.Link(link.peer, int(link.purpose), link.socket.fileno(), link.index) for link in world.links]
        )
        options = native.Options(
            size=ctypes.sizeof(native.Options),
            rank=world.rank,
            world_size=world.size,
            generation=world.generation,
            host_of_rank=(ctypes.c_int32 * world.size)(*world.host_of_rank),
            settings=native_settings,
            nsettings=len(pairs),
            nlinks=len(world.links),
            links=links,
            setting_size=ctypes.sizeof(native.Setting),
            link_size=ctypes.sizeof(native.Link),
        )
        status = native.Status()
        pointer = ctypes.c_void_p()
        code = self.library.hvd_start(ctypes.addressof(options), ctypes.addressof(pointer), ctypes.addressof(status))
        # Where a peer's end shows here, the launcher saw more of it, a moment sooner or later.
        blames_peer = 0 <= status.failed_rank != world.rank
        gone = None
        if code != native.OK and world.watch is not None:
            gone = world.watch.gone(FIRST_CAUSE_TIMEOUT_S if blames_peer else 0.0)
        world.close_links()  # hvd_start has duplicated them
        if gone is not None:
            bootstrap.record_gone(world.rendezvous, world.generation, gone)
        if code != native.OK or pointer.value is None:
            world.close()
            text = status.message() or f"the native core could not start (code {code})"
            raise StartError(text if gone is None else f"rank {world.rank} cannot go on in init: {gone}\n({text})")
        return pointer.value

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """Writes what happens from now on into a file, whatever it holds now. Raises ValueError."""
        self._timelines += 1
        status = native.Status()
        session = f"{self._session} {self._timelines}"
        code = self.library.hvd_start_timeline(
            self.pointer, os.fsencode(path), session.encode(), int(mark_cycles), ctypes.addressof(status)
        )
        if code != native.OK:
            raise InvalidRequestError(f"rank {self.rank}: {status.message()}")

    def stop_timeline(self) -> None:
        """What has happened by now is in the file then. Does nothing where no timeline is on."""
        self.library.hvd_stop_timeline(self.pointer, None)

    def place(self, process_set: int) -> tuple[int, int]:
        """(number of members, this rank's index among them or -1) of a set by the native core's number of it."""
        return self._places[process_set]

    def enter_set(self, number: int, process_set: Any, ranks: list[int]) -> None:
        """A set that all ranks have added: from here on operations may name it."""
        self._places[number] = len(ranks), ranks.index(self.rank) if self.rank in ranks else -1
        self.sets[number] = process_set

    def leave_set(self, number: int) -> None:
        """A set that all ranks have removed: its number may come back for another one."""
        self.sets.pop(number).process_set_id = None
        for key in [key for key in self.entries if key[-1] == number]:
            del self.entries[key]
        self.sighted = {key for key in self.sighted if key[-1] != number}

    def stop(self) -> None:
        """Leaves the job in order. Idempotent; what goes wrong in leaving is written to stderr, nobody can act on
        it."""
        if not self.running:
            return
        self.running = False
        for process_set in self.sets.values():
            process_set.process_set_id = None
        self.sets.clear()
        if os.getpid() != self.process_id:
            return  # a forked child: the engine's thread lives in the parent only
        status = native.Status()
        code = self.library.hvd_end_seen(self.pointer, ctypes.addressof(status))
        if code != native.OK:
            self.failure_of(code, status)  # the job learns it also where a native shim alone was told
        code = self.library.hvd_stop(self.pointer, STOP_TIMEOUT_MS, ctypes.addressof(status))
        self.world.close()
        if code != native.OK:
            print(f"horovod: rank {self.rank}: while shutting down: {status.message()}", file=sys.stderr)

    def __del__(self) -> None:
        # Operations keep their context alive, so nobody else can be inside a call here.
        if getattr(self, "pointer", None) and not self.running and os.getpid() == self.process_id:
            self.library.hvd_free(self.pointer)

    def refuse(self, name: str | None, process_set: int, why: str) -> str:
        """Tells the peers that this rank's call failed. Returns what to add to the local error where that failed
        too."""
        status = native.Status()
        # The very call that is refused may hold what cannot be encoded.
        wire_name = None if name is None else name.encode(errors="backslashreplace")
        reason = why.encode(errors="backslashreplace")
        code = self.library.hvd_refuse(self.pointer, wire_name, process_set, reason, ctypes.addressof(status))
        return "" if code == native.OK else f" (the other ranks could not be told: {status.message()})"

    def raise_failure(self, code: int, status: native.Status) -> NoReturn:
        """Raises what failure_of gives."""
        raise self.failure_of(code, status)

    def failure_of(self, code: int, status: native.Status) -> Exception:
        """The exception for a failed call; where the generation ended, with the cause that was first in the job."""
        text, failed_rank = status.message(), status.failed_rank
        if code in _FATAL:
            if self.failure is None:
                self.failure = self._first_cause(code, text, failed_rank)
            code, text, failed_rank = self.failure
        return native.error_of(code, text, failed_rank)

    def _first_cause(self, code: int, text: str, failed_rank: int) -> tuple[int, str, int]:
        mine = {"rank": failed_rank, "code": _FATAL[code], "text": text}
        if self.world.rendezvous is None:
            return code, text, failed_rank
        try:
            winner = self.world.rendezvous.first_cause(self.world.generation, mine, FIRST_CAUSE_TIMEOUT_S)
            return _CODE_OF_NAME[winner["code"]], str(winner["text"]), int(winner["rank"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            # The rendezvous may have died with the same host: the own view is still worth more than this error.
            return (
                code,
                f"{text}\n(as rank {self.rank} saw it; the job's rendezvous did not answer: {error})",
                failed_rank,
            )

    def statistics(self) -> dict[str, Any]:
        """The engine's counters and what it measured of the machine."""
        length = int(self.library.hvd_statistics(self.pointer, None, 0))
        while True:
            buffer = ctypes.create_string_buffer(length + 256)
            needed = int(self.library.hvd_statistics(self.pointer, buffer, len(buffer)))
            if needed < len(buffer):
                return dict(json.loads(buffer.value))
            length = needed


_lock = threading.RLock()
_current: Context | None = None
_starts = 0
_watchers: list[Callable[[Context | None], None]] = []


def watch(watcher: Callable[[Context | None], None]) -> None:
    """For a native shim, which submits without Python: calls `watcher` with the generation that runs, now and after
    every init, and with None before it stops."""
    with _lock:
        _watchers.append(watcher)
        if _current is not None:
            watcher(_current)


def _tell_watchers() -> None:
    for watcher in _watchers:
        watcher(_current)


def current() -> Context:
    """The running generation. Raises NotInitializedError."""
    context = _current
    if context is None:
        raise NotInitializedError("Horovod has not been initialized; use hvd.init().")
    return context


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job: blocks until all ranks are there. A second call does nothing. Raises ValueError (StartError).

    process_sets: a list of ProcessSet, equal on all ranks, which get the numbers 1, 2, ...; or "dynamic", which allows
    add_process_set and remove_process_set.
    """
    global _current, _starts
    with _lock:
        if _current is not None:
            return
        sets = [] if process_sets is None or process_sets == "dynamic" else _checked_sets(process_sets)
        native.library()  # what is missing here is known before anybody waits for this rank
        stacks.offer()
        settings = Settings.from_environment()
        if process_sets == "dynamic":
            settings = dataclasses.replace(settings, dynamic_process_sets=True)
        _check_comm(comm, settings.size or 1)
        if _starts == 0:
            atexit.register(shutdown)
        _starts += 1
        world = bootstrap.connect(settings, _starts - 1, [process_set.ranks for process_set in sets])
        try:
            _current = Context(world, settings)
        except BaseException:
            world.close()
            raise
        # Not before: a process set needs operations, which need this module.
        from horovod.core.process_sets import register_set

        try:
            for process_set in sets:
                register_set(_current, process_set)
            _tell_watchers()
        except BaseException:
            shutdown()
            raise


def shutdown() -> None:
    """Leaves the job. Does nothing when not initialized; init may follow. Peers that wait for this rank fail."""
    global _current
    with _lock:
        context, _current = _current, None
        if context is not None:
            _tell_watchers()
            context.stop()


def is_initialized() -> bool:
    """Whether init has succeeded and shutdown has not been called since."""
    return _current is not None


def rank() -> int:
    """This process' number among all, 0 to size() - 1."""
    return current().rank


def size() -> int:
    """Number of processes in the job."""
    return current().size


def local_rank() -> int:
    """This process' number among those on its host."""
    return int(current().world.local_rank)


def local_size() -> int:
    """Number of processes on this host."""
    return int(current().world.local_size)


def cross_rank() -> int:
    """This host's number among those that have this local rank."""
    return int(current().world.cross_rank)


def cross_size() -> int:
    """Number of hosts that have this local rank."""
    return int(current().world.cross_size)


def is_homogeneous() -> bool:
    """Whether every host runs equally many ranks."""
    hosts = list(current().world.host_of_rank)
    return len({hosts.count(host) for host in set(hosts)}) == 1


def statistics() -> dict[str, Any]:
    """What the engine counts and has measured: transport, hop_ns, batches, bytes ... For benchmarks and bug reports."""
    return current().statistics()


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts to record what happens to each tensor on this rank, for Chrome's and Perfetto's viewers. All ranks of this
    machine that are given the same path write into one file, on one clock; what it held before is lost.

    mark_cycles: also mark each batch. Raises ValueError before init, or where the file cannot be written.
    """
    current().start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Ends the recording; the file is complete then. Raises ValueError before init."""
    current().stop_timeline()


def mpi_threads_supported() -> bool:
    """Whether MPI was started for many threads: no, data does not go through MPI. Raises ValueError before init."""
    current()
    return False


def mpi_enabled() -> bool:
    """Whether data goes through MPI."""
    return False


def mpi_built() -> bool:
    """Whether MPI can be used."""
    return communicators.is_built("mpi")


def gloo_enabled() -> bool:
    """True: scripts branch on it to tell "not MPI", which is what our own transports are."""
    return True


def gloo_built() -> bool:
    """True, for the reason gloo_enabled gives."""
    return True


def nccl_built() -> int:
    """The version code of NCCL, 0 without it."""
    return int(communicators.is_built("nccl"))


def ddl_built() -> bool:
    """Whether IBM's DDL can be used."""
    return communicators.is_built("ddl")


def ccl_built() -> bool:
    """Whether Intel's oneCCL can be used."""
    return communicators.is_built("ccl")


def cuda_built() -> bool:
    """Whether a CUDA driver opens on this machine."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def rocm_built() -> bool:
    """Whether AMD's ROCm can be used: no."""
    return False


def _check_comm(comm: Any, world_size: int) -> None:
    if comm is None or (isinstance(comm, Sequence) and sorted(comm) in ([], list(range(world_size)))):
        return
    raise NotImplementedError(f"init(comm={comm!r}) with a part of the ranks is not supported yet")


def _checked_sets(process_sets: Any) -> list[Any]:
    from horovod.core.process_sets import ProcessSet

    if not isinstance(process_sets, (list, tuple)) or not all(isinstance(item, ProcessSet) for item in process_sets):
        raise InvalidRequestError(f"init(process_sets={process_sets!r}): expected a list of ProcessSet or 'dynamic'")
    return list(process_sets)
