# SPDX-License-Identifier: Apache-2.0
"""The running generation of the native engine in this process (step 3). core/basics.py starts and ends it.

There is one engine in a process, however many frameworks are imported. A Context is one generation: it owns the native
context and the connection to the job's rendezvous. stop() ends it; it is freed when the last operation that was started
in it is gone, so that a late synchronize() gets an error and not a crash. All functions may be called from any thread.
stop blocks until GPUs have done what was launched, and then for at most STOP_TIMEOUT_MS.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from horovod.core import calls, gpus, native, tracebacks
from horovod.core.exceptions import DuplicateNameError, InvalidRequestError, NotInitializedError, StartError
from horovod.core.requests import RequestCache
from horovod.core.telemetry import arrivals
from horovod.core.telemetry.status import StatusThread
from horovod.core.telemetry.training_apart import warn_of_training_apart
from horovod.core.wording import on_one_line, quoted, tell
from horovod.settings import Settings
from horovod.world import bootstrap, mpi
from horovod.world.files.whole import open_in_place
from horovod.world.network import at_port
from horovod.world.planned import Planned
from horovod.world.rendezvous import RankGone
from horovod.world.world import World

if TYPE_CHECKING:
    from horovod.metrics.exporter import Exporter

STOP_TIMEOUT_MS = 3000
SETTLE_SLICE_MS = 1000
FIRST_CAUSE_TIMEOUT_S = 1.0

# Errors that a rank may make in its own call.
LOCAL_ERRORS = (TypeError, ValueError, NotImplementedError, OverflowError)

# Codes that end the whole generation: the first cause in the job is the one to show.
_FATAL = {
    native.RANK_LOST: "RANK_LOST",
    native.RANK_LEFT: "RANK_LEFT",
    native.ABORTED: "ABORTED",
    native.DEVICE_LOST: "DEVICE_LOST",
    native.DEADLOCK: "DEADLOCK",
}
_CODE_OF_NAME = {name: code for code, name in _FATAL.items()}


def _is_of_the_script(error: BaseException) -> bool:
    """True if it was raised outside installed packages, for example in a method of the script's own class."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    path = "" if entry is None else entry.tb_frame.f_code.co_filename
    return path != "" and tracebacks.is_of_script(path)


class NotAMemberError(InvalidRequestError):
    """This rank is not a member of the process set, so no rank waits for it there."""


class Context:
    """One generation.

    `requests`: what it has prepared. `argument`: how a native function is given the context at the least cost.
    `uses_gpus`: whether a call on a GPU's tensors has been submitted. `smallest_replica`: elements of the smallest
    parameter with more than one that the script has broadcast; 0: none was broadcast. `reduces_gradients`: whether an
    optimizer or a tape has done so. `submit_entry`, `wait`,
    `wait_on_stream` and `release` have no argument types: they take ctypes objects only.
    """

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.rank: int = world.identity.rank
        self.communicator = settings.communicator
        self.size: int = world.identity.size
        self.process_id = os.getpid()
        self.sets: dict[int, Any] = {}  # the process sets of core/process_sets.py by number, but the global one
        self.dynamic_process_sets = settings.dynamic_process_sets
        self._places = {0: (self.size, self.rank)}
        self.failure: tuple[int, str, int] | None = None
        self.running = self.is_freed = False
        self.uses_gpus = False
        self.smallest_replica = 0
        self.reduces_gradients = False
        self.joins = 0  # of all ranks
        self.was_told = False  # of the end of the generation
        self.library = native.library()
        calls.bind(self.library)
        meeting_point = world.rendezvous
        where = f"{at_port(meeting_point.address, meeting_point.port)}" if meeting_point else str(os.getpid())
        self._session = f"{where} {world.generation}"
        self._timelines = 0
        self._teller: StatusThread | None = None
        self._report = settings.report
        self.trains_apart = bool(settings.profile)  # gradients are not reduced
        self.pointer = self._start(settings)
        self.argument = ctypes.c_void_p(self.pointer)
        self.requests = RequestCache(self.library, self.pointer)
        self.submit_entry = self.library["hvd_submit_entry"]
        self.wait = self.library["hvd_wait"]
        self.wait_on_stream = self.library["hvd_wait_on_stream"]
        self.release = self.library["hvd_release"]
        self.release.restype = None
        self._described: dict[str, Any] = {}  # the newest statistics
        self.statistics()
        self.running = True
        self._exporter: Exporter | None = None
        try:
            if settings.status_interval_s and world.rendezvous is not None:
                self._teller = StatusThread(world, settings.status_interval_s, self.statistics)
            if settings.timeline and settings.timeline.upper() != "DYNAMIC":
                self._start_own_timeline(settings)
            if settings.metrics_port is not None or settings.metrics_file:
                self._exporter = self._export(settings)
        except BaseException:
            self.stop()
            raise

    def _start(self, settings: Settings) -> int:
        world = self.world
        pairs = dataclasses.replace(settings, local_rank=world.identity.local_rank).native_settings()
        pairs.append(("nccl_found", gpus.nccl_found()))
        native_settings = (native.Setting * len(pairs))(
            *[native.Setting(name.encode(), value.encode()) for name, value in pairs]
        )
        links = (native.Link * len(world.links))(
            *[native.Link(link.peer, int(link.purpose), link.socket.fileno(), link.index) for link in world.links]
        )
        options = native.Options(
            size=ctypes.sizeof(native.Options),
            rank=self.rank,
            world_size=self.size,
            generation=world.generation,
            host_of_rank=(ctypes.c_int32 * self.size)(*world.host_of_rank),
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
        # If a peer's end shows here, the launcher saw more of it, a moment sooner or later.
        blames_peer = 0 <= status.failed_rank != self.rank
        gone = None
        if code != native.OK and world.watch is not None:
            end = world.watch.end(FIRST_CAUSE_TIMEOUT_S if blames_peer else 0.0)
            gone = end if isinstance(end, RankGone) else None
        world.close_links()  # hvd_start has duplicated them
        if gone is not None:
            bootstrap.record_gone(world.rendezvous, world.generation, gone)
        if code != native.OK or pointer.value is None:
            world.close()
            text = status.message() or f"the native core could not start (code {code})"
            if gone is not None:
                raise StartError(f"rank {self.rank} cannot go on in init: {gone}\n({text})", "start-lost-rank")
            error = StartError(text, "start-resources")
            error.of_peer = blames_peer
            raise error
        world.start_is_over()
        return pointer.value

    def _start_own_timeline(self, settings: Settings) -> None:
        """Starts the file of the settings. In a later world of an elastic job, a failure does not end the training."""
        try:
            self.start_timeline(settings.timeline, settings.timeline_mark_cycles)
        except InvalidRequestError as error:
            if settings.worker is None or self.world.generation == 1:
                raise
            tell(f"horovod: warning: generation {self.world.generation} has no timeline: {error}")

    def _export(self, settings: Settings) -> Exporter:
        from horovod.metrics.exporter import Exporter  # loads http.server

        return Exporter(settings, self.world, self.statistics)

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """Writes what happens from now on into a file, whatever it holds now. Raises ValueError."""
        self._timelines += 1
        status = native.Status()
        session = f"{self._session} {self._timelines}".encode()
        try:
            file = os.fdopen(open_in_place(path, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise InvalidRequestError(
                f"rank {self.rank}: cannot open the timeline {on_one_line(path)}: {error.strerror}"
            ) from None
        with file:  # the core duplicates it
            code = self.library.hvd_start_timeline(
                self.pointer, file.fileno(), os.fsencode(path), session, int(mark_cycles), ctypes.addressof(status)
            )
        if code != native.OK:
            raise InvalidRequestError(f"rank {self.rank}: {status.message()}")

    def stop_timeline(self) -> None:
        """Stops recording; the file then holds all events so far. Does nothing if no timeline is on."""
        self.library.hvd_stop_timeline(self.pointer, None)

    def place(self, process_set: int) -> tuple[int, int]:
        """(number of members, this rank's index among them or -1) of a set by the native core's number of it."""
        return self._places[process_set]

    def enter_set(self, numbers: Sequence[int], process_set: Any, ranks: list[int]) -> None:
        """A set that all ranks have added: from here on operations may name it, by its number or the lasting one."""
        place = len(ranks), ranks.index(self.rank) if self.rank in ranks else -1
        self._places.update(dict.fromkeys(numbers, place))
        self.sets[numbers[0]] = process_set

    def leave_set(self, number: int) -> None:
        """A set that all ranks have removed: its number may come back for another one of these ranks."""
        self.sets.pop(number).process_set_id = None
        self.requests.forget_set(number)

    def settle(self) -> None:
        """Waits until GPUs have done all that was launched; raises what has gone wrong meanwhile.

        For a moment from which there is no way back, such as writing a checkpoint.
        """
        if not self.uses_gpus:
            return
        status = native.Status()
        code = self._await_gpus(status)
        if code != native.OK:
            self.raise_failure(code, status)

    def _await_gpus(self, status: native.Status) -> int:
        code = native.PENDING
        while code == native.PENDING:  # in slices, between which Python's signal handlers run
            code = int(self.library.hvd_settle(self.pointer, SETTLE_SLICE_MS, ctypes.addressof(status)))
        return code

    def stop(self) -> None:
        """Leaves the job in order.

        Idempotent. Errors while leaving go to stderr, as no caller can act on them. If operations on a GPU have
        failed after their calls had returned, and no call has raised it, the process' exit code will be 1.
        """
        if not self.running:
            return
        self.running = False
        for process_set in self.sets.values():
            process_set.process_set_id = None
        self.sets.clear()
        if os.getpid() != self.process_id:
            return  # a forked child: the engine's thread lives in the parent only
        arrivals.keep(self.statistics()["arrivals"])
        # Both know this context, which would not be freed while it knew them.
        teller, self._teller = self._teller, None
        exporter, self._exporter = self._exporter, None
        if teller is not None:
            teller.close(in_order=not self.was_told)
        if exporter is not None:
            exporter.close()
        failed = self.was_told or hasattr(sys, "last_value")  # the script's last exception
        if self.rank == 0 and self.size > 1 and not (failed or may_grow() or self.trains_apart):
            warn_of_training_apart(self.size, self.statistics(), self.smallest_replica, self.reduces_gradients)
        if self._report:
            from horovod.world import report  # only for this

            report.end(self._report, self.rank, self.world.generation, self.statistics())
        was_told = self.was_told
        self.end_seen()  # so that the job learns it even if only a native shim was told, or no caller at all
        status = native.Status()
        try:
            # The other ranks' GPUs may need this rank's for as long as its own queue is, or theirs.
            if self.uses_gpus and (code := self._await_gpus(status)) != native.OK and not was_told:
                error = self.failure_of(code, status)
                tell(f"horovod: rank {self.rank}: the last operations have failed: {error}")
                self.library.hvd_fail_at_exit()  # the script has used their results as if they were good
        finally:
            code = self.library.hvd_stop(self.pointer, STOP_TIMEOUT_MS, ctypes.addressof(status))
            self.world.close()
        if code != native.OK:
            tell(f"horovod: rank {self.rank}: while shutting down: {status.message()}")

    def abort(self, text: str, failed_rank: int = -1) -> None:
        """Ends the generation: whatever waits in it fails with its first cause, or this text. From any thread."""
        self.library.hvd_abort(self.pointer, failed_rank, text.encode(errors="backslashreplace"))

    def __del__(self) -> None:
        # Operations keep their context alive, so no other thread can be inside a call here. But both may be in one
        # cycle of garbage, and what is in one is finalized in any order.
        if getattr(self, "pointer", None) and not self.running and os.getpid() == self.process_id:
            self.requests.pointer = None
            self.is_freed = True
            self.library.hvd_free(self.pointer)
            calls.forget(self.pointer)

    def refuse(self, label: str, name: Any, error: Exception, process_set: int = 0) -> NoReturn:
        """Tells the peers why this rank's call of `<label>.<name>` failed, then raises the error.

        It is the same error with rank and operation in front.
        """
        shown = f"unnamed {label}" if name is None else f"{label} of {quoted(name)}"
        # If the name is not a str, the peers may have the same name as a str, and wait under that.
        self.refuse_as(None if name is None else f"{label}.{name}".partition("\0")[0], shown, error, process_set)

    def refuse_as(self, wire_name: str | None, shown: str, error: Exception, process_set: int) -> NoReturn:
        """refuse() for any name: as the native core knows it, and as people read it."""
        if isinstance(error, (DuplicateNameError, NotAMemberError)):
            raise error
        reason = self._without_place(str(error))
        text = f"rank {self.rank}: {shown}: {reason}" + self.tell(wire_name, process_set, reason)
        # Subclasses of ValueError may take other arguments than a text (UnicodeEncodeError).
        kind = type(error) if type(error) in (TypeError, NotImplementedError) else InvalidRequestError
        refusal = kind(text)
        refusal.is_told = True  # type: ignore[attr-defined]  # for a caller that would tell the peers of any other error
        raise refusal from (error if _is_of_the_script(error) else None)

    def tell(self, name: str | None, process_set: int, why: str) -> str:
        """Tells the peers that this rank's call failed.

        Returns what to add to the local error if that failed too. Nothing, if the generation has ended: then no peer
        waits for this call.
        """
        status = native.Status()
        why = self._without_place(why)
        # The very call that is refused may hold what cannot be encoded.
        wire_name = None if name is None else name.encode(errors="backslashreplace")
        reason = why.encode(errors="backslashreplace")
        code = self.library.hvd_refuse(self.pointer, wire_name, process_set, reason, ctypes.addressof(status))
        if code == native.OK or code == native.NOT_RUNNING or code in _FATAL:
            return ""
        problem = self._without_place(status.message())
        # For the same reason no peer can wait for it, say under a name that is too long.
        return "" if problem == why else f" (the other ranks could not be told: {problem})"

    def _without_place(self, text: str) -> str:
        """The native core's text without the rank and the operation, which the core puts in front of it again."""
        return re.sub(rf"^rank {self.rank}, (?:unnamed \w+|`.*?`(?: \(\d+ bytes\))?): ", "", text)

    def raise_failure(self, code: int, status: native.Status) -> NoReturn:
        """Raises what failure_of gives."""
        raise self.failure_of(code, status)

    def failure_of(self, code: int, status: native.Status) -> Exception:
        """The exception for a failed call. If the generation has ended, it names the cause that came first."""
        text, failed_rank = status.message(), status.failed_rank
        self.was_told = self.was_told or code in _FATAL or self._is_over()
        if code in _FATAL:
            if self.failure is None:
                self.failure = self._first_cause(code, text, failed_rank)
            code, text, failed_rank = self.failure
        return native.error_of(code, text, failed_rank)

    def _is_over(self) -> bool:
        """True if the generation has ended. Errors of one call, such as shapes that differ, leave it running."""
        return self.library.hvd_settle(self.pointer, 0, None) not in (native.OK, native.PENDING)

    def end_seen(self) -> Exception | None:
        """Why the generation has ended, if an operation of this rank was told so, in Python or in a native shim."""
        status = native.Status()
        code = self.library.hvd_end_seen(self.pointer, ctypes.addressof(status))
        return None if code == native.OK else self.failure_of(code, status)

    def _first_cause(self, code: int, text: str, failed_rank: int) -> tuple[int, str, int]:
        mine = {"rank": failed_rank, "code": _FATAL[code], "text": text}
        mpi.abort_at_exit()
        if self.world.rendezvous is None:
            return code, text, failed_rank
        try:
            winner = self.world.rendezvous.first_cause(self.world.generation, mine, FIRST_CAUSE_TIMEOUT_S)
            return _CODE_OF_NAME[winner["code"]], str(winner["text"]), int(winner["rank"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if self.world.job is not None:  # the rendezvous ends with rank 0, which may have had the same error
                return code, text, failed_rank
            # The rendezvous may have died with the same host: our own view is still more useful than this error.
            return (
                code,
                f"{text}\n(as rank {self.rank} saw it; the job's rendezvous did not answer: {error})",
                failed_rank,
            )

    def statistics(self) -> dict[str, Any]:
        """The engine's counters and what it measured of the machine.

        After a failure the engine has let go of the communicator, whose part is then that of the last call before.
        """
        length = int(self.library.hvd_statistics(self.pointer, None, 0))
        while True:
            buffer = ctypes.create_string_buffer(length + 256)
            needed = int(self.library.hvd_statistics(self.pointer, buffer, len(buffer)))
            if needed < len(buffer):
                facts: dict[str, Any] = {**self._described, **json.loads(buffer.value)}
                facts["arrivals"] = arrivals.complete(facts["arrivals"], self.world.host_of_rank)
                self._described = facts
                return dict(facts)
            length = needed


tracebacks.install()  # not in init: a script that forgets it gets an error, too
starting = threading.RLock()  # held while a generation starts or ends
_current: Context | None = None
_was_shut_down = False
_grows = False
_watchers: list[Callable[[Context | None], None]] = []
# Called before this rank joins or shuts down: they complete its operations besides those that the script waits for.
before_leaving: list[Callable[[], None]] = []


def watch(watcher: Callable[[Context | None], None]) -> None:
    """Calls `watcher` with the generation that runs, now and after every init, and with None before it stops.

    For a native shim, which submits without Python, and for what is said at the script's end.
    """
    with starting:
        _watchers.append(watcher)
        if _current is not None and _current.running:  # of a worker that is in no world yet, nothing runs
            watcher(_current)


def tell_watchers() -> None:
    """Calls the watchers, after a generation has started and before it stops. The caller holds `starting`."""
    for watcher in _watchers:
        watcher(_current)


def current() -> Context:
    """The running generation. Raises NotInitializedError."""
    context = _current
    if context is None:
        raise NotInitializedError(
            "Horovod was shut down; hvd.init() starts it again."
            if _was_shut_down
            else "Horovod has not been initialized; use hvd.init()."
        )
    return context


def enter(context: Context | Planned | None) -> None:
    """Makes `context` the running generation; None: there is none. The caller holds `starting`."""
    global _current, _was_shut_down
    _was_shut_down = context is None
    _current = cast(Context | None, context)  # a planned one has no operations, and says so


def is_initialized() -> bool:
    """True if init has succeeded and shutdown has not been called since."""
    return _current is not None


def note_replicas(sizes: Iterable[int]) -> None:
    """The script has given all ranks the same parameters, of so many elements, as one that trains does."""
    if isinstance(_current, Context):  # a graph may be built before init
        several = [size for size in (*sizes, _current.smallest_replica) if size > 1]
        _current.smallest_replica = min(several, default=1)


def note_gradients() -> None:
    """Gradients are reduced, whatever size they have and however they travel."""
    if isinstance(_current, Context):
        _current.reduces_gradients = True


def let_grow() -> None:
    """This process is a worker of an elastic job: later generations may have other sizes."""
    global _grows
    _grows = True


def may_grow() -> bool:
    """True if a later generation may have peers, although this one has none."""
    return _grows


def rank() -> int:
    """This process' number among all, 0 to size() - 1."""
    return current().rank


def size() -> int:
    """Number of processes in the job."""
    return current().size


def statistics() -> dict[str, Any]:
    """The engine's counters and measurements: transport, hop_ns, batches, bytes ... For benchmarks and bug reports."""
    return current().statistics()
