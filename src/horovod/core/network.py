# SPDX-License-Identifier: Apache-2.0
"""Addresses of this host's network interfaces."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["interface_address"]

_SIOCGIFADDR = 0x8915


def interface_address(name: str) -> str:
    """The IPv4 address of an interface. Raises ValueError that names the interfaces there are."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            there = ", ".join(known for _, known in socket.if_nameindex())
            raise ValueError(f"no network interface {name!r} with an IPv4 address; this host has {there}") from None
    return socket.inet_ntoa(answer[20:24])
