# SPDX-License-Identifier: Apache-2.0
"""How a process learns its world: who it is, who the others are, and one authenticated socket for every link to them.

Runs in init, before the native core. The steps, each known to all ranks through the rendezvous before the next begins,
so that an error on one rank is the same error on all of them, at once:

    meet     every rank publishes a record of itself; who is missing at the end of the start timeout is named
    agree    settings that must be equal are; the hosts and their ranks are consistent
    attach   ranks of one host connect to its leader and map a piece of its memory: only then is it one host
    link     elsewhere, or where the attach failed: TCP between every pair

All keys carry the generation, so that init may follow shutdown any number of times.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from horovod import __version__
from horovod.core import links, native
from horovod.core.channel import AuthenticationError, ChannelError
from horovod.core.exceptions import StartError
from horovod.core.links import Link, Purpose
from horovod.core.rendezvous import RankGone, Rendezvous
from horovod.core.secret import read_secret
from horovod.core.settings import Settings
from horovod.core.start_watch import StartWatch

__all__ = ["Link", "Purpose", "World", "connect"]

_log = logging.getLogger("horovod")

# What every rank must have alike: (keyword, how the user spells it).
_EQUAL_SETTINGS = (
    ("fusion_threshold_bytes", "HOROVOD_FUSION_THRESHOLD"),
    ("transport", "HOROVOD_TRANSPORT"),
    ("size", "HOROVOD_SIZE"),
    ("dynamic_process_sets", "whether process sets are dynamic (HOROVOD_DYNAMIC_PROCESS_SETS, init)"),
    ("process_sets", "the process sets given to init"),
)

# What ranks publish in each step: the fields and their types, checked before any is used.
_Fields = dict[str, tuple[type, ...]]
_TEXT, _NUMBER, _TEXT_OR_NONE = (str,), (int,), (str, type(None))
_RECORD: _Fields = {
    **dict.fromkeys(("token", "hostname", "machine", "version", "transport", "process_sets"), _TEXT),
    **dict.fromkeys(("pid", "fusion_threshold_bytes", "dynamic_process_sets"), _NUMBER),
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"), _NUMBER),
    "local_address": _TEXT_OR_NONE,
}
_OUTCOME: _Fields = {"problem": _TEXT_OR_NONE}
_PLACE: _Fields = {"address": _TEXT, "port": _NUMBER, **_OUTCOME}


class Transport(str, enum.Enum):
    LOOPBACK = "loopback"
    SHM = "shm"
    TCP = "tcp"


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
    transport: str  # "shm", "tcp" or "loopback"
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


def connect(settings: Settings, generation: int, process_sets: Sequence[Sequence[int]] = ()) -> World:
    """Joins the world of this generation. Blocks for about the start timeout at most; raises StartError.
    `process_sets`: what all ranks must give alike."""
    if unsupported := settings.unsupported():
        raise StartError(unsupported)
    if not settings.rendezvous_address:
        return _alone(settings, generation)
    start = _Start(settings, generation, process_sets)
    try:
        return start.run()
    except AuthenticationError as error:
        start.close()
        raise StartError(
            f"rank {start.rank}: {error}\n"
            "hint: HOROVOD_SECRET_FILE must be the same for all ranks of a job and its launcher; this rank may be left "
            "over from another job, or the port may be another job's"
        ) from error
    except RankGone as gone:
        record_gone(start.rendezvous, generation, gone)
        start.close()
        raise StartError(f"rank {start.rank} cannot go on in init: {gone}") from None
    except ChannelError as error:
        start.close()
        raise StartError(f"rank {start.rank} could not join the job: {error}") from error
    except RuntimeError as error:  # no more threads
        start.close()
        raise StartError(
            f"rank {start.rank} could not join the job: {error}\n"
            "hint: raise the limits of processes (ulimit -u) and memory (ulimit -v)"
        ) from error
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
                "hint: unset it, or set HOROVOD_SIZE=1 where one process is meant"
            )
        raise StartError(
            f"{variable}={value} says that this is one of {value} processes, but HOROVOD_GLOO_RENDEZVOUS_ADDR, where "
            f"they would find each other, is not set; training alone would give {value} unrelated models\n"
            f"hint: start the script with `horovodrun -np {value} python ...`, or set HOROVOD_SIZE=1 where {value} "
            "independent processes are meant"
        )
    return World(0, 1, 0, 1, 0, 1, generation, [0], [], Transport.LOOPBACK.value, None)


@dataclasses.dataclass(frozen=True)
class _Identity:
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def _identity(settings: Settings) -> _Identity:
    names = [field.name for field in dataclasses.fields(_Identity)]
    values = {name: getattr(settings, name) for name in names}
    missing = [f"HOROVOD_{name.upper()}" for name in names if values[name] is None]
    if settings.rendezvous_port is None:
        missing.append("HOROVOD_GLOO_RENDEZVOUS_PORT")
    if missing:
        raise StartError(
            f"HOROVOD_GLOO_RENDEZVOUS_ADDR is set, but {', '.join(missing)} is not\n"
            "hint: horovodrun sets all of them; pass its environment on to the script unchanged"
        )
    identity = _Identity(**values)
    for index, count in (("rank", "size"), ("local_rank", "local_size"), ("cross_rank", "cross_size")):
        if values[index] >= values[count]:
            raise StartError(
                f"HOROVOD_{index.upper()}={values[index]} is out of range: HOROVOD_{count.upper()} is {values[count]}"
            )
    return identity


class _Start:
    """One run through the steps above; owns all sockets until they are in the World."""

    def __init__(self, settings: Settings, generation: int, process_sets: Sequence[Sequence[int]]) -> None:
        self.settings = settings
        self.process_sets = [list(ranks) for ranks in process_sets]
        self.generation = generation
        self.identity = _identity(settings)
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
        wants_shm = self.settings.transport != "tcp" and self.identity.local_size > 1
        if wants_shm and self.identity.local_rank == 0:
            self.leader = links.LocalLeader(self.rank, self.size, self.generation, self.secret)
        records = self._meet()
        if self.size > 1:
            self.watch = StartWatch(
                self.settings.rendezvous_address, self.rendezvous.port, self.secret, self.generation, self.deadline
            )
        _check_equal(records)
        hosts = _hosts(records)
        transport = self._choose(hosts, records)
        if transport is Transport.TCP:
            self._link()
        if self.leader is not None:
            self.leader.close()
        if self.watch is not None:
            for link in self.links:
                self.watch.guard(link.socket)
        host_of_rank = list(range(self.size)) if transport is Transport.TCP else [0] * self.size
        identity = dataclasses.asdict(self.identity)
        return World(
            **identity,
            generation=self.generation,
            host_of_rank=host_of_rank,
            links=self.links,
            transport=transport.value,
            rendezvous=self.rendezvous,
            watch=self.watch,
        )

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
            "hostname": self.settings.hostname,
            "machine": socket.gethostname(),
            "version": __version__,
            **dataclasses.asdict(self.identity),
            "fusion_threshold_bytes": self.settings.fusion_threshold_bytes,
            "transport": self.settings.transport,
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
                "hint: one process of a rank calls init; " + _second_process_hint()
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
            here = _ranks_text(sorted(by_rank)) if by_rank else "nobody"
            raise StartError(
                f"rank {self.rank} waited {self.settings.start_timeout_s:g} s in init for {_ranks_text(absent)} of "
                f"{self.size}, which {missing}; here: {here}\n"
                "hint: look at the output of the missing ranks; HOROVOD_START_TIMEOUT (seconds) lets init wait longer"
            )
        for rank, value in sorted(by_rank.items()):
            _check_record(rank, value, fields)
        return by_rank

    def _key(self, step: str, rank: int) -> str:
        return f"world/{self.generation}/{step}/{rank}"

    def _remaining(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    # attach

    def _choose(self, hosts: list[list[int]], records: dict[int, dict[str, Any]]) -> Transport:
        if self.size == 1:
            return Transport.LOOPBACK
        wanted = self.settings.transport
        if wanted == "tcp":
            return Transport.TCP
        if len(hosts) > 1:
            if wanted == "shm":
                raise StartError(
                    f"HOROVOD_TRANSPORT=shm needs all ranks on one host, but they are on {len(hosts)}: "
                    f"{_hosts_text(hosts, records)}"
                )
            if len(hosts) < self.size:
                raise StartError(
                    f"several ranks on one of several hosts are not supported yet: {_hosts_text(hosts, records)}\n"
                    "hint: place one rank on each host, or set HOROVOD_TRANSPORT=tcp, which treats every rank as a host"
                )
            return Transport.TCP
        problems = self._exchange_outcome("attach", lambda: self._attach(records[0]["local_address"]))
        if not problems:
            if self.leader is not None:
                self.links += self.leader.take(self.size - 1, self.deadline)
            return Transport.SHM
        why = "; ".join(problems)
        if wanted == "shm":
            raise StartError(f"HOROVOD_TRANSPORT=shm, but the ranks of this host cannot share memory: {why}")
        for link in self.links:
            link.socket.close()
        self.links = []
        if self.rank == 0:
            _log.warning("the ranks of this host cannot share memory and use TCP instead, which is slower: %s", why)
        return Transport.TCP

    def _attach(self, address: str | None) -> None:
        if self.leader is not None:
            return
        if address is None:
            raise StartError("the leader, rank 0, offers no local connection")
        guard = self._guard()
        self.links.append(links.attach(address, self.rank, self.generation, self.secret, self.deadline, guard))

    def _guard(self) -> links.Guard:
        assert self.watch is not None
        return self.watch.guard

    def _exchange_outcome(self, step: str, act: Callable[[], None]) -> list[str]:
        """Runs a step of this rank and tells all ranks how it went. Returns the problems, the same on every rank."""
        problem = None
        try:
            act()
        except (OSError, ValueError, MemoryError) as error:
            problem = f"rank {self.rank}: {str(error) or 'out of memory'}"
        outcomes = self._exchange(step, {"problem": problem}, _OUTCOME, f"did not finish the step `{step}`")
        return [outcome["problem"] for _, outcome in sorted(outcomes.items()) if outcome["problem"] is not None]

    # link

    def _link(self) -> None:
        problem = None
        try:
            own = links.own_address(self.settings.network_interface, self.rendezvous)
            self.mesh = links.Mesh(self.rank, self.size, self.generation, self.secret, own)
        except (OSError, ValueError) as error:
            problem = f"rank {self.rank}: {error}"
        address, port = (self.mesh.address, self.mesh.port) if self.mesh else ("", 0)
        place = {"address": address, "port": port, "problem": problem}
        places = self._exchange("address", place, _PLACE, "did not open a port")
        problems = [found["problem"] for _, found in sorted(places.items()) if found["problem"] is not None]
        if not problems:
            mesh = self.mesh
            assert mesh is not None
            problems = self._exchange_outcome("link", lambda: mesh.connect(places, self.deadline, self._guard()))
        if problems:
            raise StartError("the ranks could not connect to each other: " + "; ".join(problems))
        assert self.mesh is not None
        self.links += self.mesh.take(self.deadline)
        self.mesh.close()
        self.mesh = None


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
            "hint: do all ranks run the same version of Horovod?"
        )


def _check_equal(records: dict[int, dict[str, Any]]) -> None:
    for keyword, variable in (*_EQUAL_SETTINGS, ("version", "the installed version of Horovod")):
        ranks_of_value: dict[Any, list[int]] = {}
        for rank, record in sorted(records.items()):
            ranks_of_value.setdefault(record[keyword], []).append(rank)
        if len(ranks_of_value) > 1:
            seen = ", ".join(f"{value} on {_ranks_text(ranks)}" for value, ranks in ranks_of_value.items())
            raise StartError(
                f"the ranks disagree about {variable}: {seen}\n"
                "hint: give it to all ranks alike: a setting on horovodrun's command line or before it"
            )


def _hosts(records: dict[int, dict[str, Any]]) -> list[list[int]]:
    """The ranks of each host, by the launcher's names, ordered by their lowest rank."""
    by_name: dict[str, list[int]] = {}
    for rank, record in sorted(records.items()):
        by_name.setdefault(record["hostname"], []).append(rank)
    for name, ranks in by_name.items():
        for local_rank, rank in enumerate(ranks):
            record = records[rank]
            if (record["local_rank"], record["local_size"]) != (local_rank, len(ranks)):
                raise StartError(
                    f"rank {rank} says it is local rank {record['local_rank']} of {record['local_size']}, but on host "
                    f"{name!r} it is {local_rank} of {len(ranks)} ({_ranks_text(ranks)})\n"
                    "hint: HOROVOD_HOSTNAME must be equal for the ranks of a host and differ between hosts"
                )
    return sorted(by_name.values())


def _hosts_text(hosts: list[list[int]], records: dict[int, dict[str, Any]]) -> str:
    return ", ".join(f"{records[ranks[0]]['hostname']} ({_ranks_text(ranks)})" for ranks in hosts)


def _ranks_text(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
