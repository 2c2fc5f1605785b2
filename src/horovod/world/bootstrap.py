# SPDX-License-Identifier: Apache-2.0
"""How a process learns its world: who it is, who the others are, and one authenticated socket for every link to them.

Runs in init, before the native core. If one rank fails in one of these steps, all ranks get the same error:

    enter    the rendezvous says which generation this is, and which place this process' rank has in it
    attach   the ranks of each host connect to the leader and map its shared memory; only if this works do they count
             as one host
    meet     every rank sends its record to its host's leader, and each leader sends one for its host to one of them,
             which checks all; the digest that all need comes back the same way (meeting.py). The error names the ranks
             that are missing when the start timeout ends
    link     TCP between the hosts' leaders: with rank 0, or by way of relays (native/world/control_tree.h)

Links for data are opened later, by the first collective that uses them (data_links.py). All keys carry the generation,
so that init may follow shutdown any number of times.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from horovod import __version__
from horovod.core import native
from horovod.core.exceptions import StartError, text_of
from horovod.settings import Settings
from horovod.world import communicators, launchers, links, mpi
from horovod.world.agreed_sets import GivenSet, recorded
from horovod.world.channel import AuthenticationError, ChannelError, UnreachableError
from horovod.world.data_links import DataLinkOpener
from horovod.world.launchers.job import LaunchedJob, join
from horovod.world.links import Link
from horovod.world.meeting import OUTCOME, TOLD_AS_THEY_ARE, Digest, Meeting, check_record, read_digest, refusal
from horovod.world.network import address_towards, interface_address
from horovod.world.rendezvous import RankGone, Rendezvous
from horovod.world.secret import read_secret
from horovod.world.start_watch import StartWatch
from horovod.world.topology import Identity, Topology, identity_of, rank_of
from horovod.world.world import LAUNCHERS_WORD_S, World

__all__ = ["Assignment", "connect", "record_gone"]

_log = logging.getLogger("horovod")

_PROCESS = os.urandom(8).hex()
_alone_generations = itertools.count()


class Assignment(NamedTuple):
    """The orders of an elastic job's launcher for this process: the generation to enter, and its rank there.

    `unreached` is filled while the generation exists, on any thread: ranks that this one could not connect to.
    """

    generation: int
    rank: int
    size: int
    unreached: set[int]


def connect(
    settings: Settings,
    process_sets: Sequence[GivenSet] = (),
    comm: Any = None,
    assignment: Assignment | None = None,
) -> World:
    """Joins the generation that is being formed: the rendezvous says which, whatever this process has seen before.

    Blocks for about the start timeout at most; raises StartError. `process_sets`: on which the ranks must agree.
    `comm`: a communicator of mpi4py whose members are the job, if they are not all that were started. `assignment`: in
    an elastic job.
    """
    if unsupported := settings.unsupported():
        raise StartError(unsupported, "start-settings")
    communicators.check(settings.communicator)
    if settings.controller.strip().lower() == "mpi":
        mpi.must_be_there("HOROVOD_CONTROLLER=mpi", time.monotonic() + settings.start_timeout_s)
    job = None
    started = launchers.started_by(settings, comm)
    if started is not None and started.size > 1:
        launchers.end_with_launcher(settings)
        job = join(started, settings, time.monotonic() + settings.start_timeout_s, comm)
    elif started is not None or not settings.rendezvous_address:
        world = _alone(settings, next(_alone_generations), meant=started is not None)
        world.process_sets = [[one.ranks] for one in process_sets]
        return world
    try:
        return _run(_Start(settings, process_sets, job, comm, assignment), job)
    except BaseException:
        if job is not None:
            job.start_failed()
        raise


def _run(start: _Start, job: LaunchedJob | None) -> World:
    """If it fails, it leaves nothing behind, and other ranks are told. Raises StartError."""
    try:
        return start.run()
    except AuthenticationError as error:
        start.close()
        raise StartError(
            f"{start.name}: {error}\n"
            "hint: HOROVOD_SECRET_FILE must be the same for all ranks of a job and its launcher; this rank may be left "
            "over from another job, or the port may be another job's",
            "start-secret",
        ) from error
    except RankGone as gone:
        record_gone(start.rendezvous, start.generation, gone)
        start.close()
        raise StartError(f"{start.name} cannot go on in init: {gone}", "start-lost-rank") from None
    except ChannelError as error:
        end = start.end()
        if isinstance(end, RankGone):
            record_gone(start.rendezvous, start.generation, end)
            start.close()
            raise StartError(f"{start.name} cannot go on in init: {end}\n({error})", "start-lost-rank") from None
        start.close()
        hint = ""
        if job is not None:
            job.remove_file()
            hint = "\nhint: has rank 0 ended? Its output has the cause"
        raise StartError(f"{start.name} could not join the job: {end or error}{hint}", "start-connection") from error
    except RuntimeError as error:  # no more threads
        start.close()
        raise StartError(
            f"{start.name} could not join the job: {error}\n"
            "hint: raise the limits of processes (ulimit -u) and memory (ulimit -v)",
            "start-resources",
        ) from error
    except StartError as error:
        start.give_up(error)
        raise
    except BaseException:
        start.close()
        raise


def record_gone(rendezvous: Rendezvous | None, generation: int, gone: RankGone) -> None:
    """Tells the launcher that this rank is the cause, before another rank fails because of it."""
    if rendezvous is not None:
        with contextlib.suppress(ChannelError):  # the launcher has seen it by itself
            rendezvous.first_cause(generation, {"rank": gone.rank, "code": "RANK_LOST", "text": str(gone)}, 1.0)


def _alone(settings: Settings, generation: int, *, meant: bool) -> World:
    announced = launchers.announced_world(settings.launch_environment)
    if announced is not None and settings.size != 1 and not meant:
        variable, value = announced
        if not value.isdecimal():
            raise StartError(
                f"{variable}={value!r}: expected the number of processes that were started together\n"
                "hint: unset it, or set HOROVOD_SIZE=1 if one process is meant",
                "start-alone",
            )
        raise StartError(
            f"{variable}={value} says that this is one of {value} processes, but HOROVOD_GLOO_RENDEZVOUS_ADDR, where "
            f"they would find each other, is not set; training alone would give {value} unrelated models\n"
            f"hint: start the script with `horovodrun -np {value} python ...`, or set HOROVOD_SIZE=1 if {value} "
            "independent processes are meant",
            "start-alone",
        )
    if generation == 0 and not meant:
        launchers.warn_of_dropped_variables(settings)
    return World(Identity(0, 1, 0, 1, 0, 1), generation, [0], [], "loopback", None)


class _Start:
    """One run through the steps above; owns all sockets until they are in the World."""

    def __init__(
        self,
        settings: Settings,
        process_sets: Sequence[GivenSet],
        job: LaunchedJob | None,
        comm: Any,
        assignment: Assignment | None,
    ) -> None:
        """`job`: of another launcher than horovodrun. `comm`: what init was given. `assignment`: of an elastic job."""
        self.settings = settings
        self.comm = comm
        self.job = job
        self.process_sets = process_sets
        self.generation = 0  # until the rendezvous says which one
        self.process = f"{_PROCESS}/{os.getpid()}"  # a forked child shares the token, but is another process
        self.deadline = time.monotonic() + settings.start_timeout_s
        if job is not None:
            self.rank, self.secret, self.rendezvous = job.started.rank, job.offer.secret, job.rendezvous()
        else:
            self.rank = rank_of(settings) if assignment is None else assignment.rank
            self.secret = read_secret(settings.secret_file)
            assert settings.rendezvous_port is not None
            self.rendezvous = Rendezvous(settings.rendezvous_address, settings.rendezvous_port, self.secret)
        self.led = None if assignment is None else assignment.generation
        self.unreached: set[int] = set() if assignment is None else assignment.unreached
        self.watch: StartWatch | None = None
        self.leader: links.LocalLeader | None = None
        self.mesh: links.Mesh | None = None
        self.opener: DataLinkOpener | None = None
        self.links: list[Link] = []
        self.is_awaited = False  # by the ranks of this host, for its word
        self.mpi_problem: str | None = None

    def run(self) -> World:
        self._enter()
        self.mpi_problem = self._open_mpi()
        if self.rank == 0 and self.job is None:
            mpi.warn_of_lone_ranks(self.size)
        alone = Digest(Topology((0,)), [("", 0)], [[one.ranks] for one in self.process_sets])
        digest = self._meet() if self.size > 1 else alone
        transport, peers = self._plan(digest.topology)
        self._link(digest, peers)
        if self.leader is not None:
            self.leader.close()
        if self.watch is not None:
            for link in self.links:
                self.watch.guard(link.socket)
        if self.opener is not None:
            self.links.append(self.opener.link())
        return World(
            self.shown,
            self.generation,
            host_of_rank=list(digest.topology.host_of_rank),
            links=self.links,
            transport=transport,
            rendezvous=self.rendezvous,
            job=self.job,
            has_mpi=mpi.is_initialized(),
            comm=self.comm,
            watch=self.watch,
            opener=self.opener,
            process_sets=digest.process_sets,
            peers=peers,
        )

    @property
    def name(self) -> str:
        """In error texts."""
        return f"rank {self.rank}"

    def end(self) -> RankGone | ChannelError | None:
        """After a connection has ended: asks the launcher which rank ended; the launcher itself may be gone."""
        return None if self.watch is None else self.watch.end(LAUNCHERS_WORD_S)

    def give_up(self, why: StartError) -> None:
        if self.is_awaited and self.leader is not None:
            self.links += self.leader.attached()
        for link in self.links if self.is_awaited else ():
            with contextlib.suppress(ChannelError):  # it has ended, or given up by itself
                links.tell(link, refusal(why), time.monotonic() + 1.0)
        with contextlib.suppress(ChannelError):  # the launcher may have ended meanwhile
            self.rendezvous.abandon(self.generation, self.rank, self.process, text_of(why), 1.0)
        self.close()

    def close(self) -> None:
        for link in self.links:
            link.socket.close()
        for owner in (self.watch, self.leader, self.opener, self.mesh, self.rendezvous):
            if owner is not None:
                owner.close()

    def _remaining(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    def _until(self) -> float:
        return time.monotonic() + self._remaining()

    # enter

    def _enter(self) -> None:
        who = {"pid": os.getpid(), "machine": socket.gethostname()}
        entry = self.rendezvous.enter(self.rank, self.process, who, self._remaining(), self.led)
        self.generation = entry["generation"]
        if "other" in entry:
            other = entry["other"] if isinstance(entry["other"], dict) else {}
            raise StartError(
                f"two processes are rank {self.rank} of this job: pid {other.get('pid')} on {other.get('machine')} "
                f"and pid {os.getpid()} on {socket.gethostname()}\n"
                "hint: one process of a rank calls init; " + _second_process_hint(),
                "start-duplicate-rank",
            )
        place = entry.get("place") if self.job is None else self._place(self.job)
        self.identity, self.hostname = identity_of(self.settings, place)
        # An elastic job's launcher may show the script another local rank than the engine's.
        shown = place.get("shown") if isinstance(place, dict) else None
        self.shown = self.identity if shown is None else identity_of(self.settings, {**shown, "hostname": ""})[0]
        self.size = self.identity.size
        self.meeting = self._meeting(self.identity, self.hostname)
        if self.size > 1:
            self.watch = StartWatch(self.rendezvous, self.generation, self.deadline)
        if self.settings.fault_point:
            native.library().hvd_fault_point(self.settings.fault_point.encode(), b"rendezvous")

    def _open_mpi(self) -> str | None:
        """Before anybody waits for this rank elsewhere, since it is collective. What went wrong, for its record."""
        if self.settings.communicator not in communicators.BY_MPI or self.size == 1:
            return None
        try:
            mpi.open_world(self.rank, self.size, self.comm, self.deadline, self._look)
        except StartError as error:
            if error.code == "start-timeout" or mpi.not_the_launchers():
                raise
            return f"rank {self.rank}: {text_of(error)}"
        return None

    def _meeting(self, identity: Identity, hostname: str) -> Meeting:
        timeout_s = self.settings.start_timeout_s
        return Meeting(self.rendezvous, identity, hostname, self.generation, self.deadline, timeout_s)

    def _place(self, job: LaunchedJob) -> dict[str, Any]:
        """Agreed with the other ranks, since no launcher has assigned it."""
        alone = Identity(job.started.rank, job.started.size, 0, 1, 0, 1)
        place = self._meeting(alone, "").place(job.whereabouts())
        if job.started.rank == 0:
            job.remove_file()
        self.rendezvous.address = place["address"]
        return place

    # attach and meet

    def _meet(self) -> Digest:
        digest = self._lead() if self.meeting.leads else self._follow()
        agreed = read_digest(digest, self.size)
        here = agreed.topology.neighbours(self.rank)
        if len(here) == 1:  # its host's ranks may have attached, but one of them could not
            for link in self.links:
                link.socket.close()
            self.links = []
        return agreed

    def _lead(self) -> dict[str, Any]:
        if self.identity.local_size > 1:
            self.is_awaited = True
            problem = None
            try:
                self.leader = links.LocalLeader(self.rank, self.size, self.generation, self.secret)
            except OSError as error:
                problem = error.strerror or str(error)
            self.meeting.offer(self.leader.name if self.leader else None, problem)
        members = self.meeting.gather(self._record(None))
        attached = [member["rank"] for member in members[1:] if member["apart"] is None]
        if self.leader is not None:
            self.links = self.leader.take(attached, self._until())
        apart = [member["apart"] for member in members if member["apart"] is not None]
        if apart and self.settings.communicator != "shm":
            why = "; ".join(apart)
            _log.warning("the ranks of this host cannot share memory and use TCP instead, which is slower: %s", why)
        digest = self.meeting.judge() if self.meeting.judges else self.meeting.digest()
        for link in self.links:
            links.tell(link, digest, self._until())
        self.is_awaited = digest["problem"] is None and len(digest["hosts"]) > 1
        return digest

    def _follow(self) -> dict[str, Any]:
        leader = self.meeting.leader()
        apart = None
        try:
            self.links = [self._attach_to(leader)]
        except (OSError, StartError, ValueError, MemoryError) as error:
            apart = f"rank {self.rank}: {text_of(error) or 'out of memory'}"
        self.meeting.report(self._record(apart))
        if not self.links:
            return self.meeting.digest()
        return self._hear("the leader of its host")

    def _attach_to(self, leader: dict[str, Any]) -> Link:
        rank, address = leader["rank"], leader["local_address"]
        if address is None:
            text = f"the leader, rank {rank}, offers no local connection: {leader['problem']}"
            raise StartError(text, "start-connection")
        return links.attach(address, rank, self.rank, self.generation, self.secret, self.deadline, self._guard)

    def _guard(self, connection: socket.socket) -> None:
        assert self.watch is not None
        self.watch.guard(connection)

    def _look(self) -> None:
        """Raises what has ended this start, if anything has."""
        assert self.watch is not None
        end = self.watch.end(0.0)
        if end is not None:
            raise end

    def _hear(self, what: str) -> dict[str, Any]:
        try:
            word: dict[str, Any] = links.hear(self.links[0], self.deadline)
        except ChannelError:
            if time.monotonic() < self.deadline:
                raise
            raise self.meeting.late(what) from None
        check_record("the leader of this host", word, OUTCOME)
        return word

    def _record(self, apart: str | None) -> dict[str, Any]:
        """The record of this rank. Its port is open from here on."""
        problem = self.mpi_problem
        try:
            own = self._own_address()
            self.mesh = links.Mesh(self.rank, self.generation, self.secret, own)
        except (OSError, ValueError) as error:
            problem = f"rank {self.rank}: {error}"
        return {
            "rank": self.rank,
            "hostname": self.hostname,
            "local_rank": self.identity.local_rank,
            "local_size": self.identity.local_size,
            "address": self.mesh.address if self.mesh else "",
            "port": self.mesh.port if self.mesh else 0,
            "problem": problem,
            "apart": apart,
            "settings": {
                "version": f"{__version__} (build {native.build_id()})",
                "size": self.size,
                "transport": self.settings.communicator,
                "on_gpus": self.settings.on_gpus,
                "pretend_hosts": ",".join(map(str, self.settings.pretend_hosts)),
                "profile": self.settings.profile or "none",
                **{name: getattr(self.settings, name) for name in TOLD_AS_THEY_ARE},
                "process_sets": recorded(self.process_sets),
            },
        }

    def _own_address(self) -> str:
        """For other ranks: on the interface that the settings name, by default the one that leads to the rendezvous."""
        if self.settings.network_interface:
            return interface_address(self.settings.network_interface)
        return address_towards(self.rendezvous.address) if self.job is not None else self.rendezvous.local_address()

    # link

    def _plan(self, topology: Topology) -> tuple[str, set[int]]:
        """The communicator of all ranks, and the ranks with which this one may ever have data links."""
        host_of_rank, rank = topology.host_of_rank, self.rank
        name, peers = communicators.plan(self.settings.communicator, host_of_rank, range(self.size), rank)
        for one in self.process_sets:  # a set that only other ranks have given is not this rank's
            members = sorted({member for member in one.ranks if 0 <= member < self.size})
            if rank in members:
                peers |= communicators.plan(self.settings.communicator, host_of_rank, members, rank, must=False)[1]
        if self.settings.dynamic_process_sets:  # whom later sets join is not known
            peers |= {peer for peer in range(self.size) if host_of_rank[peer] != host_of_rank[rank]}
        return name, peers

    def _link(self, digest: Digest, peers: set[int]) -> None:
        wanted: links.Wanted = {peer: list(links.DATA_LINKS) for peer in peers}
        others = communicators.control_peers(digest.topology.host_of_rank, self.rank, self.settings.relays_above_hosts)
        wanted |= {peer: wanted.get(peer, []) + links.LEADER_LINKS for peer in others}
        problem = None
        if self.size > 1:
            self.deadline = self.meeting.all_are_here()
        if not wanted and self.mesh is not None:
            self.mesh.close()
        elif self.mesh is not None:
            try:
                self.opener = DataLinkOpener(
                    self.rank, self.mesh, digest.places, self.settings.start_timeout_s, self.unreached
                )
                self.mesh.open(wanted, self.opener)
            except OSError as error:
                problem = f"rank {self.rank}: {error}"
        if len(digest.topology.leaders) > 1:
            outcome = self._link_leaders(digest, others, problem) if others else self._hear("its leader")
            problem = outcome["problem"]
        if problem is not None:
            raise StartError("the ranks could not connect to each other: " + problem, "start-connection")
        if self.opener is not None:
            self.opener.start(peers)

    def _link_leaders(self, digest: Digest, others: set[int], problem: str | None) -> dict[str, Any]:
        """Connects the leaders, and tells this host's ranks how it went for all of them."""
        linked: list[Link] = []
        mesh = self.mesh
        assert mesh is not None
        try:
            if problem is None:
                # The others hear of a failure before their time is up.
                mesh.connect(digest.places, self.deadline - self.settings.start_timeout_s / 4, self._guard)
        except OSError as error:
            if isinstance(error, UnreachableError) and (self.watch is None or self.watch.end(0.0) is None):
                self.unreached.add(min(others))  # the only lower one
            problem = f"rank {self.rank}: {error}" + links.HINT * isinstance(error, UnreachableError)
        outcome = self.meeting.finish(self.rank, digest.topology.leaders, problem)
        if outcome["problem"] is None:
            linked = mesh.take(self._until())
        for link in self.links:
            links.tell(link, outcome, self._until())
        self.is_awaited = False
        self.links = sorted(self.links + linked, key=lambda link: (link.peer, link.purpose, link.index))
        return outcome


def _second_process_hint() -> str:
    if multiprocessing.parent_process() is not None:
        return "this one was started by multiprocessing: protect the script with `if __name__ == '__main__':`"
    return "has the script started a child that calls it too?"
