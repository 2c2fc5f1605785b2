# SPDX-License-Identifier: Apache-2.0
"""How a process learns its world: who it is, who the others are, and one authenticated socket for every link to them.

Runs in init, before the native core. The steps, each known to all ranks through the rendezvous before the next begins,
so that an error on one rank is the same error on all of them, at once:

    meet     every rank publishes a record of itself; who is missing at the end of the start timeout is named
    agree    settings that must be equal are; the hosts and their ranks are consistent
    attach   the ranks of each host connect to its leader and map a piece of its memory: only then is it one host
    link     TCP between the hosts' leaders and rank 0, and between those ranks whose communicators need it

All keys carry the generation, so that init may follow shutdown any number of times.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from horovod import __version__
from horovod.core import communicators, links, native
from horovod.core.channel import AuthenticationError, ChannelError
from horovod.core.exceptions import StartError, text_of
from horovod.core.links import Link, Purpose
from horovod.core.rendezvous import RankGone, Rendezvous
from horovod.core.secret import read_secret
from horovod.core.settings import Settings
from horovod.core.start_watch import StartWatch
from horovod.core.topology import Topology, hosts_of, identity_of, ranks_text

__all__ = ["Link", "Purpose", "World", "connect"]

_log = logging.getLogger("horovod")

_PROCESS = os.urandom(8).hex()
_alone_generations = itertools.count()

# What every rank must have alike: (keyword, how the user spells it).
_EQUAL_SETTINGS = (
    ("fusion_threshold_bytes", "HOROVOD_FUSION_THRESHOLD"),
    ("transport", "HOROVOD_TRANSPORT"),
    ("pretend_hosts", "HOROVOD_PRETEND_HOSTS"),
    ("size", "HOROVOD_SIZE"),
    ("dynamic_process_sets", "whether process sets are dynamic (HOROVOD_DYNAMIC_PROCESS_SETS, init)"),
    ("process_sets", "the process sets given to init"),
)

# What ranks publish in each step: the fields and their types, checked before any is used.
_Fields = dict[str, tuple[type, ...]]
_TEXT, _NUMBER, _TEXT_OR_NONE = (str,), (int,), (str, type(None))
_RECORD: _Fields = {
    **dict.fromkeys(("token", "hostname", "machine", "version", "transport", "pretend_hosts", "process_sets"), _TEXT),
    **dict.fromkeys(("pid", "fusion_threshold_bytes", "dynamic_process_sets"), _NUMBER),
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"), _NUMBER),
    "local_address": _TEXT_OR_NONE,
}
_OUTCOME: _Fields = {"problem": _TEXT_OR_NONE}
_PLACE: _Fields = {"address": _TEXT, "port": _NUMBER, **_OUTCOME}


@dataclasses.dataclass
class World:
    """One generation as this rank sees it. Owns the links' sockets and the rendezvous connection until `close`."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    generation: int
    host_of_rank: list[int]  # equal numbers: these ranks share memory
    links: list[Link]
    transport: str  # the communicator that joins all ranks
    rendezvous: Rendezvous | None  # None: started without a launcher
    watch: StartWatch | None = None  # until the native core has started

    def close_links(self) -> None:
        """The native core holds duplicates of its own: close ours once it has started."""
        if self.watch is not None:
            self.watch.close()
            self.watch = None
        for link in self.links:
            link.socket.close()
        self.links = []

    def close(self) -> None:
        self.close_links()
        if self.rendezvous is not None:
            self.rendezvous.close()


def connect(settings: Settings, process_sets: Sequence[Sequence[int]] = ()) -> World:
    """Joins the generation that is being formed: the rendezvous says which, whatever this process has seen before.

    Blocks for about the start timeout at most; raises StartError. `process_sets`: what all ranks must give alike.
    """
    if unsupported := settings.unsupported():
        raise StartError(unsupported, "start-settings")
    communicators.check(settings.transport)
    if not settings.rendezvous_address:
        return _alone(settings, next(_alone_generations))
    start = _Start(settings, process_sets)
    try:
        return start.run()
    except AuthenticationError as error:
        start.close()
        raise StartError(
            f"rank {start.rank}: {error}\n"
            "hint: HOROVOD_SECRET_FILE must be the same for all ranks of a job and its launcher; this rank may be left "
            "over from another job, or the port may be another job's",
            "start-secret",
        ) from error
    except RankGone as gone:
        record_gone(start.rendezvous, start.generation, gone)
        start.close()
        raise StartError(f"rank {start.rank} cannot go on in init: {gone}", "start-lost-rank") from None
    except ChannelError as error:
        start.close()
        raise StartError(f"rank {start.rank} could not join the job: {error}", "start-connection") from error
    except RuntimeError as error:  # no more threads
        start.close()
        raise StartError(
            f"rank {start.rank} could not join the job: {error}\n"
            "hint: raise the limits of processes (ulimit -u) and memory (ulimit -v)",
            "start-resources",
        ) from error
    except StartError:
        start.give_up()
        raise
    except BaseException:
        start.close()
        raise


def record_gone(rendezvous: Rendezvous | None, generation: int, gone: RankGone) -> None:
    """So that the launcher names this rank, and not the one that fails first because of it."""
    if rendezvous is not None:
        with contextlib.suppress(ChannelError):  # the launcher has seen it by itself
            rendezvous.first_cause(generation, {"rank": gone.rank, "code": "RANK_LOST", "text": str(gone)}, 1.0)


def _alone(settings: Settings, generation: int) -> World:
    # HOROVOD_SIZE=1 is the user's word that independent processes are meant.
    if settings.announced_world is not None and settings.size != 1:
        variable, value = settings.announced_world
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
    return World(0, 1, 0, 1, 0, 1, generation, [0], [], "loopback", None)


class _Start:
    """One run through the steps above; owns all sockets until they are in the World."""

    def __init__(self, settings: Settings, process_sets: Sequence[Sequence[int]]) -> None:
        self.settings = settings
        self.process_sets = [list(ranks) for ranks in process_sets]
        self.generation = 0  # until the rendezvous says which one
        self.process = f"{_PROCESS}/{os.getpid()}"  # a forked child shares the token, but is another process
        self.identity, self.hostname = identity_of(settings)
        self.rank, self.size = self.identity.rank, self.identity.size
        self.deadline = time.monotonic() + settings.start_timeout_s
        self.secret = read_secret(settings.secret_file)
        assert settings.rendezvous_port is not None
        self.rendezvous = Rendezvous(settings.rendezvous_address, settings.rendezvous_port, self.secret)
        self.watch: StartWatch | None = None
        self.leader: links.LocalLeader | None = None
        self.mesh: links.Mesh | None = None
        self.links: list[Link] = []

    def run(self) -> World:
        self.generation = self.rendezvous.enter(self.rank, self.process, self._remaining())
        if self.identity.local_size > 1 and self.identity.local_rank == 0:
            self.leader = links.LocalLeader(self.rank, self.size, self.generation, self.secret)
        records = self._meet()
        if self.size > 1:
            self.watch = StartWatch(
                self.settings.rendezvous_address, self.rendezvous.port, self.secret, self.generation, self.deadline
            )
        _check_equal(records)
        topology = self._attach(Topology.of(list(hosts_of(records).values())), records)
        transport, linked = self._plan(topology)
        if linked:
            self._link(linked)
        if self.leader is not None:
            self.leader.close()
        if self.watch is not None:
            for link in self.links:
                self.watch.guard(link.socket)
        return World(
            **dataclasses.asdict(self.identity),
            generation=self.generation,
            host_of_rank=list(topology.host_of_rank),
            links=self.links,
            transport=transport,
            rendezvous=self.rendezvous,
            watch=self.watch,
        )

    def give_up(self) -> None:
        with contextlib.suppress(ChannelError):  # the launcher may have ended meanwhile
            self.rendezvous.abandon(self.generation, self.rank, self.process, 1.0)
        self.close()

    def close(self) -> None:
        for link in self.links:
            link.socket.close()
        for owner in (self.watch, self.leader, self.mesh, self.rendezvous):
            if owner is not None:
                owner.close()

    # meet

    def _meet(self) -> dict[int, dict[str, Any]]:
        record = {
            "pid": os.getpid(),
            "token": os.urandom(8).hex(),
            "hostname": self.hostname,
            "machine": socket.gethostname(),
            "version": __version__,
            **dataclasses.asdict(self.identity),
            "fusion_threshold_bytes": self.settings.fusion_threshold_bytes,
            "transport": self.settings.transport,
            "pretend_hosts": ",".join(map(str, self.settings.pretend_hosts)),
            "dynamic_process_sets": self.settings.dynamic_process_sets,
            "process_sets": str(self.process_sets),
            "local_address": self.leader.name if self.leader else None,
        }
        winner = self.rendezvous.compare_and_set(self._key("rank", self.rank), record, self._remaining())
        if winner != record:
            _check_record(self.rank, winner, _RECORD)
            raise StartError(
                f"two processes are rank {self.rank} of this job: pid {winner['pid']} on {winner['machine']} "
                f"and pid {os.getpid()} on {socket.gethostname()}\n"
                "hint: one process of a rank calls init; " + _second_process_hint(),
                "start-duplicate-rank",
            )
        if self.settings.fault_point:
            native.library().hvd_fault_point(self.settings.fault_point.encode(), b"rendezvous")
        return self._gather("rank", _RECORD, "has not called init")

    def _exchange(self, step: str, value: Any, fields: _Fields, missing: str) -> dict[int, Any]:
        self.rendezvous.put(self._key(step, self.rank), value, self._remaining())
        return self._gather(step, fields, missing)

    def _gather(self, step: str, fields: _Fields, missing: str) -> dict[int, Any]:
        keys = {self._key(step, rank): rank for rank in range(self.size)}
        values = self.rendezvous.get_many(keys, self._remaining())
        by_rank = {keys[key]: value for key, value in values.items()}
        absent = [rank for rank in range(self.size) if rank not in by_rank]
        if absent:
            here = ranks_text(sorted(by_rank)) if by_rank else "no rank"
            raise StartError(
                f"rank {self.rank} waited {self.settings.start_timeout_s:g} s in init for {ranks_text(absent)} of "
                f"{self.size}, which {missing}; here: {here}\n"
                "hint: look at the output of the missing ranks; HOROVOD_START_TIMEOUT (seconds) lets init wait longer",
                "start-timeout",
            )
        for rank, value in sorted(by_rank.items()):
            _check_record(rank, value, fields)
        return by_rank

    def _key(self, step: str, rank: int) -> str:
        return f"world/{self.generation}/{step}/{rank}"

    def _remaining(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    # attach

    def _attach(self, topology: Topology, records: dict[int, dict[str, Any]]) -> Topology:
        """Links to this host's leader, or from its followers. Returns which ranks really share memory."""
        here = topology.neighbours(self.rank)
        if len(topology.hosts) == self.size:
            return topology
        problems = self._exchange_outcome("attach", lambda: self._attach_to(here[0], records[here[0]]["local_address"]))
        split = {topology.host_of_rank[rank] for rank in problems}
        if topology.host_of_rank[self.rank] not in split:
            if self.leader is not None:
                self.links += self.leader.take(here[1:], self.deadline)
        else:
            why = "; ".join(problems[rank] for rank in here if rank in problems)
            if self.rank == here[0] and self.settings.transport != "shm":
                _log.warning("the ranks of this host cannot share memory and use TCP instead, which is slower: %s", why)
            for link in self.links:
                link.socket.close()
            self.links = []
        if problems and self.settings.transport == "shm":
            why = "; ".join(problems.values())
            raise StartError(
                f"HOROVOD_TRANSPORT=shm, but the ranks of this host cannot share memory: {why}", "start-transport"
            )
        return topology.split(split)

    def _attach_to(self, leader: int, address: str | None) -> None:
        if leader == self.rank:
            return
        if address is None:
            raise StartError(f"the leader, rank {leader}, offers no local connection", "start-connection")
        guard = self._guard()
        self.links.append(links.attach(address, leader, self.rank, self.generation, self.secret, self.deadline, guard))

    def _guard(self) -> links.Guard:
        assert self.watch is not None
        return self.watch.guard

    def _exchange_outcome(self, step: str, act: Callable[[], None]) -> dict[int, str]:
        """Runs a step of this rank and tells all ranks how it went.

        Returns the problems by rank, the same on every rank.
        """
        problem = None
        try:
            act()
        except (OSError, ValueError, MemoryError) as error:
            problem = f"rank {self.rank}: {text_of(error) or 'out of memory'}"
        outcomes = self._exchange(step, {"problem": problem}, _OUTCOME, f"did not finish the step `{step}`")
        return _problems(outcomes)

    # link

    def _plan(self, topology: Topology) -> tuple[str, links.Wanted]:
        """The communicator of all ranks, and what every rank shall be linked with; empty if no rank needs a link."""
        host_of_rank = topology.host_of_rank
        sets = [sorted({rank for rank in ranks if 0 <= rank < self.size}) for ranks in self.process_sets]

        def linked_with(rank: int) -> set[int]:
            peers = set(communicators.plan(self.settings.transport, host_of_rank, range(self.size), rank)[1])
            for members in sets:
                if rank in members:
                    peers |= communicators.plan(self.settings.transport, host_of_rank, members, rank, must=False)[1]
            if self.settings.dynamic_process_sets:  # whom later sets join is not known
                peers |= {peer for peer in range(self.size) if host_of_rank[peer] != host_of_rank[rank]}
            return peers

        name, _ = communicators.plan(self.settings.transport, host_of_rank, range(self.size), self.rank)
        if len(topology.hosts) == 1 and not linked_with(0):
            return name, {}
        wanted: links.Wanted = {self.rank: []}  # so that it is not empty
        for peer in linked_with(self.rank):
            wanted.setdefault(peer, []).extend(links.DATA_LINKS)
        for leader in topology.leaders[1:]:
            if self.rank in (0, leader):
                wanted.setdefault(leader if self.rank == 0 else 0, []).extend(links.LEADER_LINKS)
        return name, wanted

    def _link(self, wanted: links.Wanted) -> None:
        problem = None
        try:
            own = links.own_address(self.settings.network_interface, self.rendezvous)
            self.mesh = links.Mesh(self.rank, wanted, self.generation, self.secret, own)
        except (OSError, ValueError) as error:
            problem = f"rank {self.rank}: {text_of(error)}"
        address, port = (self.mesh.address, self.mesh.port) if self.mesh else ("", 0)
        place = {"address": address, "port": port, "problem": problem}
        places = self._exchange("address", place, _PLACE, "did not open a port")
        problems = _problems(places)
        if not problems:
            mesh = self.mesh
            assert mesh is not None
            problems = self._exchange_outcome("link", lambda: mesh.connect(places, self.deadline, self._guard()))
        if problems:
            raise StartError(
                "the ranks could not connect to each other: " + "; ".join(problems.values()), "start-connection"
            )
        assert self.mesh is not None
        self.links = sorted(
            self.links + self.mesh.take(self.deadline), key=lambda link: (link.peer, link.purpose, link.index)
        )
        self.mesh.close()
        self.mesh = None


def _problems(outcomes: dict[int, Any]) -> dict[int, str]:
    """What went wrong, by rank."""
    return {rank: one["problem"] for rank, one in sorted(outcomes.items()) if one["problem"] is not None}


def _second_process_hint() -> str:
    if multiprocessing.parent_process() is not None:
        return "this one was started by multiprocessing: protect the script with `if __name__ == '__main__':`"
    return "has the script started a child that calls it too?"


def _check_record(rank: int, record: Any, fields: _Fields) -> None:
    """What another rank has published has these fields, of these types."""
    wrong = list(fields)
    if isinstance(record, dict):
        wrong = [name for name, kinds in fields.items() if not isinstance(record.get(name, wrong), kinds)]
    if wrong:
        raise StartError(
            f"rank {rank} published a record that cannot be read: {', '.join(wrong)} missing or of another type\n"
            "hint: do all ranks run the same version of Horovod?",
            "start-version",
        )


def _check_equal(records: dict[int, dict[str, Any]]) -> None:
    for keyword, variable in (*_EQUAL_SETTINGS, ("version", "the installed version of Horovod")):
        ranks_of_value: dict[Any, list[int]] = {}
        for rank, record in sorted(records.items()):
            ranks_of_value.setdefault(record[keyword], []).append(rank)
        if len(ranks_of_value) > 1:
            values = ", ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in ranks_of_value.items())
            raise StartError(
                f"the ranks disagree about {variable}: {values}\n"
                "hint: give it to all ranks alike: a setting on horovodrun's command line or before it",
                "start-settings",
            )
