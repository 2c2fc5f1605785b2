# SPDX-License-Identifier: Apache-2.0
"""Rates of this rank's TCP connections to other hosts: how much has arrived there, and how long that took."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct

__all__ = ["by_address"]

_WHOLE = 192  # bytes of tcp_info that are read; kernels before 4.9 know less
# linux/tcp.h: tcpi_bytes_acked, and at 168 tcpi_busy_time, tcpi_rwnd_limited and tcpi_sndbuf_limited, in us.
_BYTES_ACKED = struct.Struct("@Q")
_TIMES = struct.Struct("@QQQ")


def by_address() -> dict[str, tuple[int, float]]:
    """By the peer's address: bytes that have arrived there, and seconds in which bytes were on their way.

    Without the time in which the receiver had no room: that is its process' doing, not the network's.
    """
    found: dict[str, tuple[int, float]] = {}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            peer, arrived, busy_s = _measured(int(descriptor))
            before = found.get(peer, (0, 0.0))
            found[peer] = before[0] + arrived, before[1] + busy_s
    return found


def _measured(descriptor: int) -> tuple[str, int, float]:
    """Raises OSError if this is not a TCP connection."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError
    # The descriptor may be closed at any moment, and then be another's: the copy stays what it is.
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
            raise OSError
        peer = copy.getpeername()[0]
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WHOLE)
    if len(info) < _WHOLE:
        raise OSError
    (arrived,) = _BYTES_ACKED.unpack_from(info, 120)
    busy_us, no_room_us, _ = _TIMES.unpack_from(info, 168)
    return peer, arrived, max(0, busy_us - no_room_us) * 1e-6
