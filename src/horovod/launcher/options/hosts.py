# SPDX-License-Identifier: Apache-2.0
"""Which rank runs where: host lists as users write them, and the identities of the ranks that follow from them.

No processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod.core.wording import counted
from horovod.settings import environment_of
from horovod.world.network import at_port
from horovod.world.topology import Identity, identities

__all__ = [
    "Host",
    "HostsError",
    "RankIdentity",
    "assign_ranks",
    "is_local",
    "packed",
    "parse_hostfile",
    "parse_hosts",
    "ranks_by_host",
    "unpacked",
]

# A name that begins with a dash would be a flag to ssh. IPv6 in brackets, with its interface if it is link-local.
_NAME = r"(?P<name>[A-Za-z0-9_.][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
_HOST = re.compile(rf"{_NAME}(?::(?P<slots>[0-9]+))?")
_MAX_SLOTS = r"(?:\s+max[-_]slots\s*=\s*[0-9]+)?"  # Open MPI's; more ranks than slots are never started anyway
_HOSTFILE_LINE = re.compile(rf"{_NAME}(?:\s*:\s*(?P<colon>[0-9]+)|\s+slots\s*=\s*(?P<slots>[0-9]+){_MAX_SLOTS})?")
_BARE_IPV6 = re.compile(r"^([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[^\s]*)(\s+slots\s*=)")
_USER = re.compile(r"(?P<user>[^\s@]+)@(?P<rest>.+)")


class HostsError(ValueError):
    """A host list cannot be read, or has too few slots for the ranks."""


@dataclasses.dataclass(frozen=True)
class Host:
    name: str
    slots: int


@dataclasses.dataclass(frozen=True)
class RankIdentity(Identity):
    """The contents of a rank's HOROVOD_* variables."""

    hostname: str

    def environment(self) -> dict[str, str]:
        return environment_of(**dataclasses.asdict(self))


def parse_hosts(text: str) -> list[Host]:
    """`name:slots,name:slots`; a name alone has one slot. Raises HostsError that quotes the entry."""
    if not text.strip():
        raise HostsError("-H names no host\nhint: is a variable empty? Write name:slots, as in -H localhost:4")
    hosts = []
    for entry in map(str.strip, text.split(",")):
        if not entry:
            raise HostsError(f"-H {text}: an entry is empty\nhint: leave out a comma at an end, or one of two")
        match = _HOST.fullmatch(entry)
        name = _name(match)
        slots = int(match["slots"] or 1) if match else 0
        if not name or slots == 0:
            raise HostsError(f"{entry!r} is not a host\nhint: {_hint(entry, 'write name:slots, as in -H localhost:4')}")
        hosts.append(Host(name, slots))
    names = [host.name for host in hosts]
    repeated = {name: sum(host.slots for host in hosts if host.name == name) for name in names if names.count(name) > 1}
    if repeated:
        once = ",".join(at_port(name, count) for name, count in repeated.items())
        raise HostsError(
            f"host {', '.join(repeated)} is listed more than once\nhint: write it once, with all of its slots: {once}"
        )
    return hosts


def parse_hostfile(text: str, filename: str) -> list[Host]:
    """One host a line: `name slots=N`, `name:N`, or a name alone, which is one slot. `#` begins a comment.

    `max_slots=N` behind the slots, a word of Open MPI's, changes nothing. The slots of a name that stands on several
    lines are added up, as batch systems write their lists. Raises HostsError that quotes the line.
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _HOSTFILE_LINE.fullmatch(_BARE_IPV6.sub(r"[\1]\2", entry))
        name = _name(match)
        count = int(match["colon"] or match["slots"] or 1) if match else 0
        if not name or count == 0:
            raise HostsError(
                f"{filename}, line {number}: {entry!r} is not a host\n"
                f"hint: {_hint(entry, 'write a line for each host: server1 slots=4')}"
            )
        slots[name] = slots.get(name, 0) + count
    if not slots:
        raise HostsError(f"{filename} names no host\nhint: write a line for each host: server1 slots=4")
    return [Host(name, count) for name, count in slots.items()]


def _name(match: re.Match[str] | None) -> str:
    """Empty for what is not a host: in brackets stands an address of IPv6."""
    name = match["name"] if match else ""
    if name.startswith("["):
        name = name.strip("[]")
        with contextlib.suppress(ValueError):
            ipaddress.IPv6Address(name)
            return name
        return ""
    return name


def _hint(entry: str, usual: str) -> str:
    """The advice for an entry that is not a host."""
    if "[" in entry or "::" in entry or entry.count(":") > 3:
        return "write an IPv6 address in brackets: [2001:db8::1]:4, or [fe80::1%eth0]:4 if it is link-local"
    found = _USER.fullmatch(entry)
    if found is None:
        return usual
    name = re.split(r"[\s:]", found["rest"])[0]
    return f"write {found['rest']}, and the user into ~/.ssh/config: `Host {name}`, and below it `User {found['user']}`"


def ranks_by_host(hosts: Sequence[Host], size: int) -> list[int]:
    """How many of `size` ranks each host gets, in the given order. Raises HostsError if there are too few slots."""
    slots = sum(host.slots for host in hosts)
    if size > slots:
        listed = ", ".join(at_port(host.name, host.slots) for host in hosts)
        raise HostsError(
            f"{size} ranks were asked for, but the hosts have {counted(slots, 'slot')} ({listed})\n"
            "hint: lower -np, or give a host more slots; a slot is a place for one rank, not a core"
        )
    local_sizes = []
    left = size
    for host in hosts:
        local_sizes.append(min(host.slots, left))
        left -= local_sizes[-1]
    return local_sizes


def assign_ranks(hosts: Sequence[Host], size: int) -> list[RankIdentity]:
    """`size` ranks, host by host in the given order. Raises HostsError if there are too few slots."""
    names: list[str] = []
    ranks: list[range] = []
    for host, local_size in zip(hosts, ranks_by_host(hosts, size), strict=True):
        ranks.append(range(len(names), len(names) + local_size))
        names += [host.name] * local_size
    return [RankIdentity(**vars(one), hostname=name) for one, name in zip(identities(ranks), names, strict=True)]


def packed(ranks: Sequence[RankIdentity]) -> dict[str, Any]:
    """The identities of a host's ranks as an agent is told them: what is common to all of them is said once."""
    environments = [one.environment() for one in ranks]
    first = environments[0] if environments else {}  # an elastic job's agents get theirs later
    own = [name for name in first if any(environment[name] != first[name] for environment in environments)]
    return {
        "common": {name: value for name, value in first.items() if name not in own},
        "own": own,
        "ranks": [
            [one.rank, *map(environment.__getitem__, own)] for one, environment in zip(ranks, environments, strict=True)
        ],
    }


def unpacked(message: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, str]]]:
    """The ranks of a message that `packed` made, each with its environment."""
    for rank, *values in message["ranks"]:
        yield rank, {**message["common"], **dict(zip(message["own"], values, strict=True))}


@functools.cache
def is_local(name: str) -> bool:
    """True if `name` is this machine: its name, with or without its domain, or a name or number of its addresses.

    May block for as long as a look-up of the name takes. An unknown name is not this machine.
    """
    own = socket.gethostname()
    if name in ("localhost", "127.0.0.1", "::1", own, own.split(".")[0]) or name.startswith("localhost."):
        return True
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in found)


def _is_own_address(family: int, address: tuple[object, ...]) -> bool:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        if _may_bind_any() and not str(address[0]).startswith("127."):
            probe.connect((address[0], 9, *address[2:]))  # nothing is sent
            return bool(probe.getsockname()[0] == address[0])
        probe.bind((address[0], 0, *address[2:]))  # only an address of this machine can be bound
        return True
    return False


def _may_bind_any() -> bool:
    """As machines may that take over the addresses of others."""
    files = (Path(f"/proc/sys/net/{family}/ip_nonlocal_bind") for family in ("ipv4", "ipv6"))
    return any(file.read_text().strip() != "0" for file in files if file.exists())
