# SPDX-License-Identifier: Apache-2.0
"""Addresses of this host's network interfaces, the ways to others, and what tells its machine apart from others.

IPv4 and IPv6. A link-local address is sent from host to host without its scope, the name of an interface: each host has
its own. Who listens at it knows which interface has it, who connects tries all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "ANY",
    "LOOPBACK",
    "address_towards",
    "at_port",
    "attempts",
    "connected",
    "interface_address",
    "listening",
    "machine",
    "own_addresses",
    "running_networks",
    "ways_to",
]

ANY = ""  # to listen at: all networks, IPv4 and IPv6
LOOPBACK = "127.0.0.1"
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_LOOPBACK = 0x8
_RUNS = 0x1 | 0x40  # IFF_UP and IFF_RUNNING
_UNUSABLE = 0x08 | 0x20 | 0x40  # the kernel's flags: another host has it too, it is given up, it is not yet checked
_TEMPORARY = 0x01
T = TypeVar("T")


def interface_address(names: str) -> str:
    """The address of the first of these interfaces that this host has, IPv4 before IPv6; commas between the names.

    Hosts may name their interfaces differently: a list can hold the names of all of them. Raises ValueError that names
    the interfaces there are.
    """
    for name in names.split(","):
        addresses = _addresses_of(name.strip())
        if addresses:
            return addresses[0]
    there = ", ".join(known for _, known in socket.if_nameindex())
    raise ValueError(f"no network interface {names!r} with an address; this host has {there}")


def own_addresses() -> list[str]:
    """The addresses at which other hosts may reach this one, loopback left out: all of IPv4, then all of IPv6."""
    found = dict.fromkeys(one for _, name in socket.if_nameindex() for one in _addresses_of(name))
    return sorted((one for one in found if not ipaddress.ip_address(one).is_loopback), key=lambda one: ":" in one)


def running_networks() -> set[str]:
    """The interfaces, but loopback, that are up and have a carrier."""
    names = {name for _, name in socket.if_nameindex()}
    return {name for name in names if _flags_of(name) & _RUNS == _RUNS and not _flags_of(name) & _IFF_LOOPBACK}


def address_towards(address: str) -> str:
    """This host's address on the way to another one. Nothing is sent."""
    family, place = ways_to(address, 9)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        own: str = probe.getsockname()[0]
        return own


def at_port(address: str, port: int) -> str:
    """As in a URL; IPv4 that came to a socket for both kinds as IPv4."""
    address = address.removeprefix("::ffff:") if "." in address else address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def listening(address: str, port: int = 0, backlog: int = 4096) -> socket.socket:
    """A socket that listens there; ANY includes IPv6 if this host has it. Raises OSError."""
    if address == ANY:
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        return socket.create_server(("0.0.0.0", port), backlog=backlog)
    scopes = [name for name in _scopes(address) if address in _ipv6_of(name)]
    family, place = _places(f"{address}%{scopes[0]}" if scopes else address, port)[0]
    return socket.create_server(place, family=family, backlog=backlog)


def ways_to(address: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    """Families and places to connect to: several for a name, and for a link-local address without an interface.

    Raises OSError for an unknown name.
    """
    scoped = [f"{address}%{name}" for name in _scopes(address)] or [address]
    return [place for one in scoped for place in _places(one, port)]


def attempts(
    ways: Iterable[tuple[T, socket.AddressFamily, Any]],
    left_s: Callable[[], float],
    guard: Callable[[socket.socket], object] = lambda _: None,
) -> Generator[tuple[T, socket.socket | OSError], None, None]:
    """Connects to all places at a time: whose outcome it is, and the connection, or why there is none, as they come.

    The caller owns the connections, which do not block. `guard` gets each socket before it connects.
    """
    with selectors.DefaultSelector() as selector:
        try:
            for whose, family, place in ways:
                trial = socket.socket(family, socket.SOCK_STREAM)
                selector.register(trial, selectors.EVENT_WRITE, whose)
                guard(trial)
                trial.setblocking(False)
                code = trial.connect_ex(place)
                if code not in (0, errno.EINPROGRESS):
                    yield whose, _given_up(selector, trial, code)
            while selector.get_map() and (wait_s := left_s()) > 0:
                for key, _ in selector.select(wait_s):
                    assert isinstance(key.fileobj, socket.socket)
                    code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code:
                        yield key.data, _given_up(selector, key.fileobj, code)
                    else:
                        selector.unregister(key.fileobj)
                        yield key.data, key.fileobj
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                yield key.data, _given_up(selector, key.fileobj, errno.ETIMEDOUT)
        finally:
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def _given_up(selector: selectors.BaseSelector, trial: socket.socket, code: int) -> OSError:
    selector.unregister(trial)
    trial.close()
    return OSError(code, "no answer" if code == errno.ETIMEDOUT else os.strerror(code))


def connected(
    address: str, port: int, timeout_s: float, guard: Callable[[socket.socket], object] = lambda _: None
) -> socket.socket:
    """A connection that blocks, by the way that answers first. Raises OSError."""
    deadline = time.monotonic() + timeout_s
    ways = [("", *way) for way in ways_to(address, port)]
    with contextlib.closing(attempts(ways, lambda: deadline - time.monotonic(), guard)) as outcomes:
        for _, outcome in outcomes:
            if isinstance(outcome, socket.socket):
                outcome.settimeout(max(0.01, deadline - time.monotonic()))
                return outcome
            error = outcome
    raise error


def machine() -> str:
    """Equal for processes of one boot and one network namespace; it says nothing if the system does not tell.

    Ranks share memory by way of a socket of their network namespace. Whether they can is proved by trying (links.py).
    """
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts)


def _addresses_of(interface: str) -> list[str]:
    """One of IPv4 and one of IPv6, if it has them; a link-local one only if there is no other."""
    ipv6 = _ipv6_of(interface)
    found = [*_ipv4_of(interface), *[one for one in ipv6 if not _is_link_local(one)][:1]]
    return found or ipv6[:1]


def _ipv4_of(interface: str) -> list[str]:
    answer = _asked(interface, _SIOCGIFADDR)
    return [socket.inet_ntoa(answer[20:24])] if answer else []


def _flags_of(interface: str) -> int:
    answer = _asked(interface, _SIOCGIFFLAGS)
    return int.from_bytes(answer[16:18], sys.byteorder)


def _asked(interface: str, what: int) -> bytes:
    """The kernel's struct ifreq; empty if there is no such interface, or nothing to say of it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        return fcntl.ioctl(probe.fileno(), what, struct.pack("256s", interface.encode()[:15]))
    return b""


def _ipv6_of(interface: str) -> list[str]:
    """All that can be used; those that do not change with time come first."""
    found: list[tuple[int, str]] = []
    with contextlib.suppress(FileNotFoundError), open("/proc/net/if_inet6") as lines:  # a kernel without IPv6
        for number, _, _, _, flags, name in map(str.split, lines):
            if name == interface and not int(flags, 16) & _UNUSABLE:
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))
                found.append((int(flags, 16) & _TEMPORARY, address))
    return [address for _, address in sorted(found)]


def _scopes(address: str) -> list[str]:
    """The interfaces that may lead to a link-local address; none for others."""
    names = [name for _, name in socket.if_nameindex()] if _is_link_local(address) else []
    return [name for name in names if any(map(_is_link_local, _ipv6_of(name)))]


def _is_link_local(address: str) -> bool:
    """False if it names its interface."""
    return address[:3].lower() in ("fe8", "fe9", "fea", "feb") and ":" in address and "%" not in address


def _places(address: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    return [(family, place) for family, _, _, _, place in found]
