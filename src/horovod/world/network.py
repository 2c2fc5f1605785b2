# SPDX-License-Identifier: Apache-2.0
"""Addresses of this host's network interfaces, and what tells its machine apart from others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

__all__ = ["address_towards", "interface_address", "machine", "own_addresses"]

_SIOCGIFADDR = 0x8915


def interface_address(names: str) -> str:
    """The IPv4 address of the first of these interfaces that this host has; commas between the names.

    Hosts may name their interfaces differently: a list can hold the names of all of them. Raises ValueError that names
    the interfaces there are.
    """
    for name in names.split(","):
        address = _address_of(name.strip())
        if address is not None:
            return address
    there = ", ".join(known for _, known in socket.if_nameindex())
    raise ValueError(f"no network interface {names!r} with an IPv4 address; this host has {there}")


def own_addresses() -> list[str]:
    """The IPv4 addresses at which other hosts may reach this one: one of each interface but loopback."""
    addresses = [_address_of(name) for _, name in socket.if_nameindex()]
    return [one for one in dict.fromkeys(addresses) if one is not None and not one.startswith("127.")]


def address_towards(address: str) -> str:
    """This host's address on the way to another one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        own: str = probe.getsockname()[0]
        return own


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


def _address_of(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:  # no such interface, or one without an IPv4 address
            return None
    return socket.inet_ntoa(answer[20:24])
