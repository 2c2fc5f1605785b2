# SPDX-License-Identifier: Apache-2.0
"""The places of ranks: a rank's identity, and the ranks of each host. Every rank knows the same topology.

The rendezvous says where a rank is in a generation, or leaves it to the environment that the launcher has made;
HOROVOD_PRETEND_HOSTS divides one machine into several hosts, for tests. Nothing here knows how data travels.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from horovod.core.exceptions import StartError
from horovod.core.wording import counted
from horovod.settings import Settings

__all__ = ["Identity", "Topology", "hosts_of", "identities", "identity_of", "places_of", "rank_of", "ranks_text"]


@dataclasses.dataclass(frozen=True)
class Identity:
    """A rank's place among all ranks, among those of its host, and among those of its local rank on all hosts."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def identities(hosts: Sequence[Sequence[int]]) -> list[Identity]:
    """The identity of each rank. `hosts`: the ranks of each host, by local rank."""
    cross_sizes = collections.Counter(local_rank for ranks in hosts for local_rank in range(len(ranks)))
    size = sum(map(len, hosts))
    earlier: collections.Counter[int] = collections.Counter()  # hosts so far with a rank of this local rank
    by_rank = {}
    for ranks in hosts:
        for local_rank, rank in enumerate(ranks):
            cross_rank, cross_size = earlier[local_rank], cross_sizes[local_rank]
            by_rank[rank] = Identity(rank, size, local_rank, len(ranks), cross_rank, cross_size)
            earlier[local_rank] += 1
    return [by_rank[rank] for rank in range(size)]


@dataclasses.dataclass(frozen=True)
class Topology:
    """Equal numbers in `host_of_rank`: these ranks share memory. Hosts are numbered by their lowest rank."""

    host_of_rank: tuple[int, ...]

    @classmethod
    def of(cls, hosts: Sequence[Sequence[int]]) -> Topology:
        """From the ranks of each host."""
        host_of = {rank: host for host, ranks in enumerate(sorted(map(sorted, hosts))) for rank in ranks}
        return cls(tuple(host_of[rank] for rank in range(len(host_of))))

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, in order."""
        ranks: list[list[int]] = [[] for _ in set(self.host_of_rank)]
        for rank, host in enumerate(self.host_of_rank):
            ranks[host].append(rank)
        return ranks

    def neighbours(self, rank: int) -> list[int]:
        """The ranks of this rank's host, itself included; the first one is the host's leader."""
        return [other for other, host in enumerate(self.host_of_rank) if host == self.host_of_rank[rank]]

    def identities(self) -> list[Identity]:
        """The identity of each rank."""
        return identities(self.hosts)

    @property
    def leaders(self) -> list[int]:
        """The lowest rank of each host."""
        return [ranks[0] for ranks in self.hosts]

    def split(self, hosts: Collection[int]) -> Topology:
        """The same, except that each rank of these hosts is a separate host."""
        kept = [ranks for host, ranks in enumerate(self.hosts) if host not in hosts]
        return Topology.of(kept + [[rank] for rank, host in enumerate(self.host_of_rank) if host in hosts])


_NAMES = [field.name for field in dataclasses.fields(Identity)]


def rank_of(settings: Settings) -> int:
    """The rank that the environment says. Raises StartError if it does not say all that a rank needs."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in _NAMES}
    missing = [f"HOROVOD_{name.upper()}" for name in _NAMES if values[name] is None]
    if settings.rendezvous_port is None:
        missing.append("HOROVOD_GLOO_RENDEZVOUS_PORT")
    if missing:
        raise StartError(
            f"HOROVOD_GLOO_RENDEZVOUS_ADDR is set, but {', '.join(missing)} is not\n"
            "hint: horovodrun sets all of them; pass its environment on to the script unchanged",
            "start-settings",
        )
    return _checked(Identity(**values)).rank


def identity_of(settings: Settings, assigned: Any) -> tuple[Identity, str]:
    """The identity of this process in a generation, and the name of its host.

    `assigned`: the place that the rendezvous has assigned, with the fields of Identity and `hostname`; if it is None,
    the environment decides. HOROVOD_PRETEND_HOSTS divides the host of the result.
    """
    place = assigned
    if place is None:
        place = {**{name: getattr(settings, name) for name in _NAMES}, "hostname": settings.hostname}
    numbers: dict[str, Any] = {name: place.get(name) for name in _NAMES} if isinstance(place, dict) else {}
    hostname = place.get("hostname") if isinstance(place, dict) else None
    if not numbers or not isinstance(hostname, str) or not all(isinstance(one, int) for one in numbers.values()):
        text = f"neither the environment nor the rendezvous says where this process stands: {place}"
        raise StartError(text, "start-settings")
    identity = _checked(Identity(**numbers))
    return _pretended(identity, hostname, settings.pretend_hosts) if settings.pretend_hosts else (identity, hostname)


def _checked(identity: Identity) -> Identity:
    for index, count in (("rank", "size"), ("local_rank", "local_size"), ("cross_rank", "cross_size")):
        value, limit = getattr(identity, index), getattr(identity, count)
        if not 0 <= value < limit:
            text = f"HOROVOD_{index.upper()}={value} is out of range: HOROVOD_{count.upper()} is {limit}"
            raise StartError(text, "start-settings")
    return identity


def _pretended(identity: Identity, hostname: str, sizes: Sequence[int]) -> tuple[Identity, str]:
    if sum(sizes) != identity.size:
        raise StartError(
            f"HOROVOD_PRETEND_HOSTS={','.join(map(str, sizes))} divides {counted(sum(sizes), 'rank')}, but there are "
            f"{identity.size}\nhint: give the number of ranks on each host, or unset it",
            "start-settings",
        )
    topology = Topology(tuple(host for host, size in enumerate(sizes) for _ in range(size)))
    return topology.identities()[identity.rank], f"{hostname}/{topology.host_of_rank[identity.rank]}"


def places_of(whereabouts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The place of each rank, from what the ranks say of themselves: `hostname`, and `machine`, which tells apart.

    A place is what `identity_of` takes. Machines of one name get numbers behind it.
    """
    ranks_of: dict[tuple[str, str], list[int]] = {}
    for rank, here in enumerate(whereabouts):
        ranks_of.setdefault((here["hostname"], here["machine"]), []).append(rank)
    topology = Topology.of(list(ranks_of.values()))
    names: dict[tuple[str, str], str] = {}
    for hostname, machine in ranks_of:
        namesakes = sum(known == hostname for known, _ in names)
        names[hostname, machine] = f"{hostname} ({namesakes + 1})" if namesakes else hostname
    return [
        {**dataclasses.asdict(identity), "hostname": names[here["hostname"], here["machine"]]}
        for identity, here in zip(topology.identities(), whereabouts, strict=True)
    ]


def hosts_of(records: Mapping[int, Mapping[str, Any]]) -> dict[str, list[int]]:
    """The ranks of each host by its name, from what the ranks say of themselves.

    Raises StartError if it does not fit together.
    """
    by_name: dict[str, list[int]] = {}
    for rank, record in sorted(records.items()):
        by_name.setdefault(record["hostname"], []).append(rank)
    for name, ranks in by_name.items():
        for local_rank, rank in enumerate(ranks):
            record = records[rank]
            if (record["local_rank"], record["local_size"]) != (local_rank, len(ranks)):
                raise StartError(
                    f"rank {rank} says it is local rank {record['local_rank']} of {record['local_size']}, but on host "
                    f"{name!r} it is {local_rank} of {len(ranks)} ({ranks_text(ranks)})\n"
                    "hint: HOROVOD_HOSTNAME must be equal for the ranks of a host and differ between hosts",
                    "start-settings",
                )
    return by_name


def ranks_text(ranks: Sequence[int]) -> str:
    """In words: rank 1, or ranks 1, 2."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
