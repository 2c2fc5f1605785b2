# SPDX-License-Identifier: Apache-2.0
"""The basic functions of every framework's package: init, shutdown, where this process stands, and what is built in.

`__all__` is the one list of their names: the packages re-export it. All functions may be called from any thread; init
blocks until all ranks are there, shutdown as context.Context.stop says.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from horovod.core import context as contexts
from horovod.core import gpus, native, raised
from horovod.core.context import Context, current, is_initialized, rank, size, statistics
from horovod.core.exceptions import InvalidRequestError, StartError
from horovod.core.process_sets import ProcessSet, register_set, take_for_all
from horovod.core.telemetry import stacks
from horovod.core.temporary_files import say_no_init
from horovod.core.wording import on_one_line
from horovod.settings import Settings, current_environment
from horovod.settings.without_effect import notes, variables_without_effect
from horovod.world import bootstrap, communicators, launchers, mpi
from horovod.world.agreed_sets import GivenSet
from horovod.world.bootstrap import Assignment
from horovod.world.launchers.base import Handed, Started, handed_over

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "statistics",
    "stop_timeline",
]

_log = logging.getLogger("horovod")

_registered = False  # whether shutdown runs at exit

# Enters the world that a process has been told of, in an elastic job.
Enter = Callable[[Assignment], None]
_elastic_init: Callable[[Settings, Enter], None] | None = None


def _at_exit() -> None:
    """For a script that forgets init: horovodrun says so, if no other rank has called it either."""
    if not _registered and os.getpid() == _importer:
        say_no_init()


_importer = os.getpid()
atexit.register(_at_exit)


def set_elastic_init(elastic_init: Callable[[Settings, Enter], None]) -> None:
    """Sets what init does in an elastic job: horovod/elastic knows when this process is in which world."""
    global _elastic_init
    _elastic_init = elastic_init


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job: blocks until all ranks are there. A second call does nothing. Raises ValueError (StartError).

    comm: the ranks of the job, by default all that were started: a communicator of mpi4py, or a list of their ranks. Or
    a list of communicators: the first is the job, of each other one ProcessSet(communicator) is a process set.
    process_sets: a list of ProcessSet, which get the numbers 1, 2, ...; or "dynamic", which allows add_process_set and
    remove_process_set. The list is equal on all ranks, but for sets of communicators that Split has made: there each
    rank gives that of its own group, and all groups become sets.
    """
    with contexts.starting:
        if is_initialized():
            return
        try:
            settings = Settings.from_environment()
            if settings.worker is None:
                _start(settings, comm, process_sets)
            elif _elastic_init is None:
                raise StartError(
                    f"worker {settings.worker} of an elastic job has not imported horovod.elastic\n"
                    "hint: horovod.core has no elastic training; import the package of a framework that has, such as "
                    "horovod.torch",
                    "start-settings",
                )
            else:
                _elastic_init(settings, lambda assignment: _enter(settings, comm, process_sets, assignment))
        except BaseException:
            mpi.start_failed()
            raise


def init_as(rank: int, size: int, give: Callable[[bytes], None], take: Callable[[float], bytes | None]) -> None:
    """Does init for a caller that knows the ranks, with process sets that may change.

    If horovodrun has not started this rank, `give` and `take` carry rank 0's message to the others (Handed in
    world/launchers/base.py).
    """
    started = Started("the caller of init", rank, size, key="", has_mpi=False)
    with contexts.starting, handed_over(Handed(started, give, take)):
        init(process_sets="dynamic")


def is_launched() -> bool:
    """True if a launcher says that this process is one of several, so that init finds the others."""
    settings = Settings.from_environment()
    return bool(settings.rendezvous_address) or launchers.recognise(settings.launch_environment) is not None


def _enter(settings: Settings, comm: Any, process_sets: Any, assignment: Assignment) -> None:
    """A world of an elastic job, with those of the process sets whose ranks it has."""
    with contexts.starting:
        if isinstance(process_sets, (list, tuple)):
            there = range(assignment.size)
            process_sets = [one for one in process_sets if set(getattr(one, "ranks", None) or []) <= set(there)]
        _start(settings, comm, process_sets, assignment)


def _of_generation(timeline: str, generation: int) -> str:
    """Each generation has a timeline of its own: timeline.json, then timeline.2.json, and so on."""
    root, extension = os.path.splitext(timeline)
    return timeline if timeline.upper() == "DYNAMIC" else f"{root}.{generation}{extension}"


def _start(settings: Settings, comm: Any, process_sets: Any, assignment: Assignment | None = None) -> None:
    """Does the work of init. The caller holds the lock."""
    global _registered
    sets = [] if process_sets is None or process_sets == "dynamic" else _checked_sets(process_sets)
    if mpi.are_communicators(comm):
        comm, *others = comm
        sets = [*map(ProcessSet, others), *sets]
    native.library()  # what is missing here is known before anybody waits for this rank
    stacks.offer()
    if assignment is None:
        raised.watch(settings.raised_grace_s)
    if process_sets == "dynamic":
        settings = dataclasses.replace(settings, dynamic_process_sets=True)
    if settings.report:
        from horovod.world import report  # only for this

        settings = report.begin(settings)
    if assignment is not None and assignment.generation > 1 and settings.timeline:
        settings = dataclasses.replace(settings, timeline=_of_generation(settings.timeline, assignment.generation))
    if comm is not None:
        size = settings.size or launchers.world_size(settings.launch_environment)
        comm = mpi.communicator_of(comm, size, time.monotonic() + settings.start_timeout_s)
    for process_set in sets:
        process_set.take_ranks(comm)
    given = [GivenSet(process_set.ranks, process_set.mpi_comm is not None) for process_set in sets]
    world = bootstrap.connect(settings, given, comm, assignment)
    try:
        context = Context(world, settings)
    except BaseException:
        world.start_failed()
        raise
    contexts.enter(context)
    if not _registered:
        if context.rank == 0 and not settings.rendezvous_address:  # else horovodrun has said it
            for note in notes(variables_without_effect(current_environment())):
                _log.warning("horovod: warning: %s", on_one_line(note))
        mpi.at_exit(shutdown)  # runs before what a launcher has registered: MPI ends after the world
        _registered = True
    try:
        for process_set, groups in zip(sets, world.process_sets, strict=True):
            own = process_set.ranks
            if assignment is not None and own == list(range(context.size)):
                take_for_all(context, process_set)
                continue
            for ranks in groups:
                register_set(context, process_set if ranks == own else ProcessSet(ranks))
        contexts.tell_watchers()
    except BaseException:
        shutdown()
        raise


def shutdown() -> None:
    """Leaves the job. Does nothing when not initialized; init may follow. Peers that wait for this rank fail."""
    with contexts.starting:
        if is_initialized():
            context = contexts.current()
            for complete in contexts.before_leaving:
                complete()
            contexts.enter(None)
            contexts.tell_watchers()
            context.stop()


def local_rank() -> int:
    """This process' number among those on its host."""
    return int(current().world.identity.local_rank)


def local_size() -> int:
    """Number of processes on this host."""
    return int(current().world.identity.local_size)


def cross_rank() -> int:
    """This host's number among those that have this local rank."""
    return int(current().world.identity.cross_rank)


def cross_size() -> int:
    """Number of hosts that have this local rank."""
    return int(current().world.identity.cross_size)


def is_homogeneous() -> bool:
    """True if all hosts run the same number of ranks."""
    hosts = list(current().world.host_of_rank)
    return len({hosts.count(host) for host in set(hosts)}) == 1


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts to record what happens to each tensor on this rank, for Chrome's and Perfetto's viewers.

    All ranks of this machine that are given the same path write into one file, on one clock; its old contents are lost.

    mark_cycles: also mark each batch. Raises ValueError before init, or if the file cannot be written.
    """
    current().start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Ends the recording; the file is complete then. Raises ValueError before init."""
    current().stop_timeline()


def mpi_threads_supported() -> bool:
    """True if MPI carries the data; it then serves many threads. Raises ValueError before init."""
    return current().world.transport in communicators.BY_MPI


def mpi_enabled() -> bool:
    """True if MPI carries the data."""
    return is_initialized() and mpi_threads_supported()


def mpi_built() -> bool:
    """True if MPI can be used."""
    return communicators.is_built("mpi")


def gloo_enabled() -> bool:
    """True: scripts use it to mean "not MPI", which is true of Horovod's own transports."""
    return True


def gloo_built() -> bool:
    """True, for the reason gloo_enabled gives."""
    return True


def nccl_built() -> int:
    """The version code of the NCCL that would be used, such as 22809; 0 without one. Looks for no GPU."""
    return gpus.nccl_version()


def ddl_built() -> bool:
    """True if IBM's DDL can be used."""
    return communicators.is_built("ddl")


def ccl_built() -> bool:
    """True if Intel's oneCCL can be used."""
    return communicators.is_built("ccl")


def cuda_built() -> bool:
    """True if this machine has a CUDA driver that can be used. Does not look for a GPU."""
    return gpus.cuda_version() > 0


def rocm_built() -> bool:
    """False: AMD's ROCm cannot be used."""
    return False


def _checked_sets(process_sets: Any) -> list[Any]:
    if not isinstance(process_sets, (list, tuple)) or not all(isinstance(item, ProcessSet) for item in process_sets):
        raise InvalidRequestError(f"init(process_sets={process_sets!r}): expected a list of ProcessSet or 'dynamic'")
    return list(process_sets)
