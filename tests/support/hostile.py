# SPDX-License-Identifier: Apache-2.0
"""Strangers at a port of the job: what they send, and that each is turned away in time.

    with Strangers(dial, patience_s=12) as strangers: ...    all are at the door while the block runs

`dial()` gives a fresh connection. At the end of the block every stranger must have been hung up on within `patience_s`
of its first byte, whatever it sent and however slowly, and none was told more than the server's half of a handshake.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import selectors
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from horovod.world.channel import Channel, authenticate_client
from support.patience import LIMIT_S

HALF_A_HANDSHAKE = 68  # the server's nonce and proof: all that a stranger is ever told
DRIP_S = 1.0


def letters() -> list[bytes]:
    """What is sent at once."""
    dice = random.Random(5)
    hello = b"HVD1" + bytes(32)
    lengths = [struct.pack(form, number) for form in (">I", "<I") for number in (0, 1, 2**31, 2**32 - 1)]
    lengths += [struct.pack(form, number) for form in (">Q", "<Q") for number in (2**31, 2**63, 2**64 - 1)]
    return [
        b"\n",
        b"HVD1",
        b"HVD",
        hello[:-1],
        hello,
        hello + bytes(31),
        hello + bytes(32),
        hello + bytes(100_000),
        b"HVD2" + bytes(64),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + dice.randbytes(190),
        pickle.dumps({"op": "put"}) * 20,
        b"\0" * 200_000,
        *(length + bytes(64) for length in lengths),
        *(hello + length for length in lengths),
        *(dice.randbytes(dice.randint(1, 3000)) for _ in range(20)),
    ]


class Recorder(socket.socket):
    """Keeps what was sent through it."""

    recorded = b""

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.recorded += bytes(data)
        super().sendall(data, flags)


def record(connection: socket.socket, secret: bytes, purpose: str, message: object) -> tuple[bytes, Channel]:
    """What a rank that holds the secret sends: a whole handshake and one message. With the channel, still open."""
    taped = Recorder(connection.family, connection.type, fileno=connection.detach())
    channel = authenticate_client(taped, secret, purpose, time.monotonic() + LIMIT_S, "server")
    channel.send(message, time.monotonic() + LIMIT_S)
    return taped.recorded, channel


class Strangers:
    def __init__(
        self,
        dial: Callable[[], socket.socket],
        patience_s: float,
        *,
        also: tuple[bytes, ...] = (),
        idle: int = 20,
    ) -> None:
        self._dial = dial
        self._patience_s = patience_s
        self._letters = [*letters(), *also]
        self._idle = idle
        self._began: dict[socket.socket, float] = {}
        self._unsent: dict[socket.socket, bytes] = {}  # of those who send a byte a second
        self._heard: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Strangers:
        for letter in self._letters:
            self._enter(letter)
        for slow in (b"HVD1" + bytes(64), b"HVD1" + os.urandom(64), b"GET / HTTP/1.1\r\n" * 4):
            connection = self._enter(slow[:1])
            self._unsent[connection] = slow[1:]
        for _ in range(self._idle):
            self._enter(b"")
        return self

    def _enter(self, letter: bytes) -> socket.socket:
        connection = self._dial()
        connection.setblocking(False)
        self._began[connection] = time.monotonic()
        self._heard[connection] = 0
        self._selector.register(connection, selectors.EVENT_READ)
        with contextlib.suppress(ConnectionError, BlockingIOError):  # hung up on meanwhile, or it reads no more
            while letter:
                letter = letter[connection.send(letter) :]
        return connection

    def ready(self) -> None:
        """Until all have been hung up on."""
        next_drip = time.monotonic()
        while self._began:
            now = time.monotonic()
            late = [connection for connection, began in self._began.items() if now - began > self._patience_s]
            assert not late, f"{len(late)} strangers still hold their connection after {self._patience_s} s"
            for key, _ in self._selector.select(0.1):
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj)
            if now >= next_drip:
                next_drip = now + DRIP_S
                for connection in list(self._unsent):
                    self._drip(connection)

    def _drip(self, connection: socket.socket) -> None:
        rest = self._unsent.pop(connection)
        if connection in self._began and rest:
            with contextlib.suppress(ConnectionError):
                connection.send(rest[:1])
                self._unsent[connection] = rest[1:]

    def _hear(self, connection: socket.socket) -> None:
        try:
            heard = len(connection.recv(4096))
        except ConnectionError:
            heard = 0
        self._heard[connection] += heard
        assert self._heard[connection] <= HALF_A_HANDSHAKE, "a stranger was told more than half a handshake"
        if heard == 0:
            self._selector.unregister(connection)
            del self._began[connection]
            connection.close()

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.ready()
        finally:
            for connection in self._began:
                connection.close()
            self._selector.close()
