# SPDX-License-Identifier: Apache-2.0
"""The job of ranks that mpirun, srun or torchrun started: they find each other, and nothing is to be set.

Rank 0 runs the rendezvous on threads of its own process. The others get its addresses and the job's secret by MPI
(mpi.py), from a file (folder.py), or in a way that the caller of init has (Handed in base.py). This happens once in a
process; every init after that meets at the same rendezvous, which ends with rank 0.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horovod.core.exceptions import StartError
from horovod.core.wording import of_system
from horovod.settings import Settings
from horovod.world.launchers import mpi
from horovod.world.launchers.base import Handed, Started, handed
from horovod.world.launchers.folder import OfferFile
from horovod.world.launchers.offer import Offer
from horovod.world.mpi import at_exit, not_the_launchers, will_abort
from horovod.world.network import ANY, LOOPBACK, at_port, interface_address, machine, own_addresses
from horovod.world.reach import reach
from horovod.world.rendezvous import Rendezvous
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.secret import new_secret

__all__ = ["LaunchedJob", "join"]

_HEARD_S = 3.0  # in which the other ranks take an answer
_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 0.5  # at the file, which may lie on a network's file system


@dataclasses.dataclass
class LaunchedJob:
    """`reached`: the addresses of rank 0 at which this rank reaches it, in rank 0's order."""

    started: Started
    offer: Offer
    reached: list[str]
    file: OfferFile | None = None
    server: RendezvousServer | None = None  # in rank 0

    def rendezvous(self) -> Rendezvous:
        """A new connection to it."""
        return Rendezvous(self.reached[0], self.offer.port, self.offer.secret, "the rendezvous in rank 0")

    def whereabouts(self) -> dict[str, Any]:
        """The facts by which rank 0 gives this rank a place (Meeting.place)."""
        return {"hostname": socket.gethostname(), "machine": machine(), "reached": self.reached}

    def start_failed(self) -> None:
        """In rank 0: returns when the others have heard so too, but for those that do not listen."""
        if self.server is not None:
            self.server.wait_for_starts(_HEARD_S)

    def remove_file(self) -> None:
        """All ranks are there and need the file no more, or rank 0 has ended."""
        if self.file is not None:
            self.file.remove(self.offer)


_jobs: list[tuple[Any, LaunchedJob]] = []  # with the communicator of mpi4py that init was given, or a Handed


def join(started: Started, settings: Settings, deadline: float, comm: Any = None) -> LaunchedJob:
    """Blocks until rank 0 is found, or `deadline` has passed. Raises StartError. The caller holds the lock of init.

    `comm`: a communicator of mpi4py, whose members are the job; by default MPI's world, if it can be had.
    """
    caller = handed()
    if comm is None and caller is not None:
        return _join_handed(caller, settings, deadline)
    for given, job in _jobs:
        if given is comm or (given is not None and given == comm):
            return job
    by_mpi = comm
    if comm is None and not settings.rendezvous_directory:
        by_mpi = mpi.opened(started, deadline)
    find = _lead if started.rank == 0 else _follow
    _jobs.append((comm, find(started, settings, deadline, by_mpi)))
    return _jobs[-1][1]


def _join_handed(caller: Handed, settings: Settings, deadline: float) -> LaunchedJob:
    """The others may be new processes each time, so that rank 0 gives its message anew; its rendezvous may be old."""
    if caller.started.rank != 0:
        return _follow_handed(caller, settings, deadline)
    for given, job in _jobs:
        if isinstance(given, Handed) and given.started == caller.started:
            caller.give(job.offer.packed())
            return job
    _jobs.append((caller, _lead(caller.started, settings, deadline, caller)))
    return _jobs[-1][1]


def _lead(started: Started, settings: Settings, deadline: float, carrier: Any) -> LaunchedJob:
    """`carrier`: a communicator of mpi4py, or a Handed; None: a file."""
    secret = new_secret()
    file = _file(started, settings) if carrier is None else None
    try:
        addresses = [interface_address(settings.network_interface)] if settings.network_interface else []
        server = RendezvousServer(secret, addresses[0] if addresses else ANY, notices_ends=True)
    except (OSError, ValueError) as error:
        raise StartError(
            f"rank 0 cannot open a port for the other ranks: {of_system(error)}", "start-connection"
        ) from error
    offer = Offer(started.size, addresses or [*own_addresses(), LOOPBACK], server.port, secret)
    try:
        if file is not None:
            file.write(offer)
            atexit.register(file.remove, offer)  # if this start fails
        elif isinstance(carrier, Handed):
            carrier.give(offer.packed())
        else:
            mpi.give(carrier, offer.packed(), deadline)
    except BaseException:
        server.close()
        raise
    at_exit(functools.partial(_close, server, os.getpid()))
    return LaunchedJob(started, offer, offer.addresses, file, server)


def _close(server: RendezvousServer, owner: int) -> None:
    """At exit, before MPI_Finalize, which may wait for the others: they would wait for a rendezvous that is silent."""
    if os.getpid() == owner and not will_abort():
        server.close()


def _follow(started: Started, settings: Settings, deadline: float, comm: Any) -> LaunchedJob:
    if comm is None:
        return _follow_file(started, settings, deadline)
    offer = Offer.parse(mpi.take(comm, deadline))
    if offer is None:
        raise StartError("rank 0 sent an offer that cannot be read; does it run this version?", "start-version")
    reached, unreached = _reached(offer, deadline)
    if not reached:
        raise StartError(f"rank {started.rank} cannot reach rank 0: {_why(offer, unreached)}", "start-connection")
    return LaunchedJob(started, offer, reached)


def _follow_handed(caller: Handed, settings: Settings, deadline: float) -> LaunchedJob:
    started = caller.started
    found = _awaited(started, lambda: Offer.parse(caller.take(deadline) or b""), deadline)
    if isinstance(found, str):
        raise StartError(
            f"rank {started.rank} of {started.size} waited {settings.start_timeout_s:g} s in init for the message by "
            f"which rank 0 is found: {found}\nhint: look at the output of rank 0",
            "start-unfound",
        )
    return LaunchedJob(started, *found)


def _follow_file(started: Started, settings: Settings, deadline: float) -> LaunchedJob:
    file = _file(started, settings)
    found = _awaited(started, file.read, deadline)
    if isinstance(found, str):
        raise _unfound(started, settings, file, found)
    return LaunchedJob(started, *found, file)


def _awaited(started: Started, read: Callable[[], Offer | None], deadline: float) -> tuple[Offer, list[str]] | str:
    """The offer, and the addresses at which this rank reaches rank 0. If there is none in time: why."""
    look_s = _FIRST_LOOK_S
    why = "it is not there"
    while True:
        offer = read()
        if offer is not None and offer.size == started.size:
            reached, unreached = _reached(offer, deadline)
            if reached:
                return offer, reached
            # Perhaps it is left over from a job that has ended, and rank 0 is about to replace it.
            why = f"it names {_why(offer, unreached)}"
        if time.monotonic() > deadline:
            return why
        time.sleep(look_s)
        look_s = min(2 * look_s, _LAST_LOOK_S)


def _unfound(started: Started, settings: Settings, file: OfferFile, why: str) -> StartError:
    without_mpi = "mpi4py was not asked, since HOROVOD_RENDEZVOUS_DIRECTORY is set"
    if not settings.rendezvous_directory:
        without_mpi = "mpi4py cannot be used here" if started.has_mpi else f"{started.launcher} has started no MPI"
        without_mpi = not_the_launchers() or without_mpi
    return StartError(
        f"rank {started.rank} of {started.size} waited {settings.start_timeout_s:g} s in init for the file "
        f"{file.path}, by which rank 0 is found: {why}; {without_mpi}\n"
        "hint: look at the output of rank 0; if the hosts share no home folder, set HOROVOD_RENDEZVOUS_DIRECTORY to a "
        "folder that they share, or install mpi4py for the MPI of mpirun, or start the job with horovodrun",
        "start-unfound",
    )


def _file(started: Started, settings: Settings) -> OfferFile:
    folder = Path(settings.rendezvous_directory or Path("~/.horovod").expanduser())
    if not started.key and not settings.rendezvous_directory:
        raise StartError(
            f"{started.launcher} says that this is rank {started.rank} of {started.size}, but not which job it belongs "
            "to, and mpi4py cannot be used\n"
            "hint: install mpi4py for this MPI, or set HOROVOD_RENDEZVOUS_DIRECTORY to a folder of this job alone, "
            "which its hosts share",
            "start-unfound",
        )
    return OfferFile(folder, started.key)


def _reached(offer: Offer, deadline: float) -> tuple[list[str], dict[str, str]]:
    channels, unreached = reach(offer.addresses, offer.port, offer.secret, max(1.0, deadline - time.monotonic()))
    for channel in channels.values():
        channel.close()
    return [address for address in offer.addresses if address in channels], unreached


def _why(offer: Offer, unreached: dict[str, str]) -> str:
    return "; ".join(f"{at_port(address, offer.port)} ({text})" for address, text in unreached.items())
