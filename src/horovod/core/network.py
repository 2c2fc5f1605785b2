# SPDX-License-Identifier: Apache-2.0
"""Addresses of this host's network interfaces."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["address_towards", "interface_address", "own_addresses"]

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


def _address_of(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:  # no such interface, or one without an IPv4 address
            return None
    return socket.inet_ntoa(answer[20:24])
