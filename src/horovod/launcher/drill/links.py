# SPDX-License-Identifier: Apache-2.0
"""Measures the link between two hosts over one TCP connection: round trips, clocks, rates, and what was sent again.

Both ends know the drill's own secret, and prove it before anything else is read. Blocks; raises OSError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import select
import socket
import statistics
import struct
import time

from horovod.world import network
from horovod.world.channel import Channel, ChannelError, authenticate_client, authenticate_server

__all__ = ["Link", "answer", "measure", "rounds"]

PURPOSE = "drill link"
MEET_S = 15.0  # for the other side to come
TRIPS = 40
RATE_S = 0.4  # for which each direction is filled
_CHUNK = 64 << 10
_MORE, _LAST = b"\1", b"\0"
_UNSENT_BYTES = 256 << 10  # so that little is left to send when the time is over
_TCP_NOTSENT_LOWAT = 25
_RETRANSMITTED, _SENT = 100, 156  # offsets of 32-bit numbers in the kernel's struct tcp_info: segments with data


@dataclasses.dataclass(frozen=True)
class Link:
    """Between two hosts, by number. Rates in bytes a second; `offset_s`: how far the second clock is ahead."""

    hosts: tuple[int, int]
    trip_s: float = 0.0
    offset_s: float = 0.0
    there: float = 0.0
    back: float = 0.0
    resent: int = 0
    sent: int = 0
    error: str = ""

    @property
    def rate(self) -> float:
        return min(self.there, self.back)


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """All pairs of so many hosts, in rounds in which each host has one partner at most."""
    places = [*range(hosts), *([-1] if hosts % 2 else [])]
    found = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        met = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in met if -1 not in pair])
        places[1:] = [places[-1], *places[1:-1]]
    return [pairs for pairs in found if pairs]


def measure(hosts: tuple[int, int], at: tuple[str, int], secret: bytes) -> Link:
    """The side that connects, the first host of the pair. A link that cannot be used is a Link with an error."""
    deadline = time.monotonic() + MEET_S
    peer = network.at_port(*at)
    try:
        connection = network.connected(*at, MEET_S)
        with _stream(authenticate_client(connection, secret, PURPOSE, deadline, peer)) as stream:
            trips = [_trip(stream) for _ in range(TRIPS)]
            there = _fill(stream)
            back = _drain(stream)
            own, other = _counts(stream), struct.unpack("!II", _exactly(stream, 8))
            return Link(
                hosts,
                statistics.median(trip for trip, _ in trips),
                min(trips)[1],  # the quickest trip leaves the least doubt
                there,
                back,
                own[0] + other[0],
                own[1] + other[1],
            )
    except OSError as error:
        return Link(hosts, error=f"{peer}: {error.strerror or error}")


def answer(listening: socket.socket, secret: bytes) -> None:
    """The other side. Returns when the pair is done, or could not meet: the side that connects says why."""
    deadline = time.monotonic() + MEET_S
    with contextlib.suppress(OSError), _accepted(listening, secret, deadline) as stream:
        for _ in range(TRIPS):
            _exactly(stream, 1)
            stream.sendall(struct.pack("!d", time.time()))
        _drain(stream)
        _fill(stream)
        stream.sendall(struct.pack("!II", *_counts(stream)))


def _accepted(listening: socket.socket, secret: bytes, deadline: float) -> socket.socket:
    while True:
        listening.settimeout(max(0.001, deadline - time.monotonic()))
        connection, address = listening.accept()
        try:
            return _stream(authenticate_server(connection, secret, PURPOSE, deadline, address[0]))
        except ChannelError:  # a stranger
            if time.monotonic() > deadline:
                raise


def _stream(channel: Channel) -> socket.socket:
    stream = channel.detach()
    stream.settimeout(MEET_S)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    return stream


def _trip(stream: socket.socket) -> tuple[float, float]:
    """The seconds of a round trip, and how far the other clock seems ahead."""
    began, clock = time.monotonic(), time.time()
    stream.sendall(b"\0")
    (theirs,) = struct.unpack("!d", _exactly(stream, 8))
    took = time.monotonic() - began
    return took, theirs - clock - took / 2


def _fill(stream: socket.socket) -> float:
    """Sends for RATE_S; the rate at which the other side received."""
    more, last = _MORE + bytes(_CHUNK - 1), _LAST + bytes(_CHUNK - 1)
    end = time.monotonic() + RATE_S
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    while time.monotonic() < end:
        # Writable only while little is unsent; sendall alone would fill the whole buffer of the socket.
        if poll.poll(max(1, int((end - time.monotonic()) * 1000))):
            stream.sendall(more)
    stream.sendall(last)
    (rate,) = struct.unpack("!d", _exactly(stream, 8))
    return float(rate)


def _drain(stream: socket.socket) -> float:
    """Receives what the other side sends; says at which rate."""
    chunk = memoryview(bytearray(_CHUNK))
    _receive_into(stream, chunk)  # the clock runs from the first chunk on
    began, received = time.monotonic(), 0
    while chunk[0] == _MORE[0]:
        _receive_into(stream, chunk)
        received += _CHUNK
    rate = received / max(1e-9, time.monotonic() - began)
    stream.sendall(struct.pack("!d", rate))
    return rate


def _counts(stream: socket.socket) -> tuple[int, int]:
    """Segments with data that were sent again, and all that were sent."""
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    if len(info) < _SENT + 4:
        return 0, 0
    return struct.unpack_from("=I", info, _RETRANSMITTED)[0], struct.unpack_from("=I", info, _SENT)[0]


def _exactly(stream: socket.socket, count: int) -> bytes:
    buffer = bytearray(count)
    _receive_into(stream, memoryview(buffer))
    return bytes(buffer)


def _receive_into(stream: socket.socket, buffer: memoryview) -> None:
    at = 0
    while at < len(buffer):
        count = stream.recv_into(buffer[at:])
        if count == 0:
            raise ConnectionResetError("the other side has closed the connection")
        at += count
