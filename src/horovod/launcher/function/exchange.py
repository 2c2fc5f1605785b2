# SPDX-License-Identifier: Apache-2.0
"""horovod.run over several machines: the task goes to the ranks, and their answers come back.

The connections prove the job's secret. On the caller's machine these are files in its memory (run_function.py); here
they travel as a length (8 bytes, big-endian) and that many bytes. A rank connects twice: for the task, and at its end
with its answer.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence

from horovod.world import network
from horovod.world.channel import Channel, ChannelError, Listener, authenticate_client

__all__ = ["Exchange", "ask_for_task", "bring_answer"]

_PURPOSE = "horovod.run"
_LENGTH = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20
_CONNECT_S = 30.0
_TAKEN = b"+"


class Exchange:
    """Gives `task` to every rank that asks, and writes each rank's answer into its file of `answers`.

    A thread for each connection (world/channel.py). Listens on `address` from construction to `close`.
    """

    def __init__(self, secret: bytes, address: str, task: str, answers: Sequence[str]) -> None:
        """`task` and `answers`: paths of files."""
        self._task = task
        self._answers = answers
        listening = network.listening(address)
        self.port: int = listening.getsockname()[1]
        self._listener = Listener(listening, secret, _PURPOSE, self._serve)

    def close(self) -> None:
        self._listener.close()

    def _serve(self, channel: Channel) -> None:
        request = channel.receive(time.monotonic() + _CONNECT_S)
        connection = channel.connection  # stays the channel's, so that `close` wakes this thread
        connection.settimeout(None)
        try:
            match request:
                case {"op": "task"}:
                    self._give_task(connection)
                case {"op": "answer", "rank": int(rank)} if 0 <= rank < len(self._answers):
                    self._take_answer(connection, channel.peer, self._answers[rank])
        except OSError as error:  # the peer has gone, or `close` was called
            raise ChannelError(f"{channel.peer}: {error}") from error

    def _give_task(self, connection: socket.socket) -> None:
        with open(self._task, "rb") as file:
            connection.sendall(_LENGTH.pack(os.fstat(file.fileno()).st_size))
            connection.sendfile(file)

    def _take_answer(self, connection: socket.socket, peer: str, path: str) -> None:
        with open(path, "wb") as file:
            try:
                for piece in _pieces(connection, peer):
                    file.write(piece)
            except OSError:
                file.truncate(0)  # a part of an answer is none
                raise
        connection.sendall(_TAKEN)


def ask_for_task(address: str, port: int, secret: bytes) -> bytes:
    """Blocks until it is here. Raises ChannelError."""
    with _connected(address, port, secret, {"op": "task"}) as connection:
        return b"".join(_pieces(connection, f"horovod.run at {network.at_port(address, port)}"))


def bring_answer(address: str, port: int, secret: bytes, rank: int, answer: bytes) -> None:
    """Blocks until the caller has it. Raises ChannelError."""
    with _connected(address, port, secret, {"op": "answer", "rank": rank}) as connection:
        connection.sendall(_LENGTH.pack(len(answer)))
        connection.sendall(answer)
        if connection.recv(1) != _TAKEN:
            raise ChannelError(
                f"horovod.run at {network.at_port(address, port)} did not accept the result of rank {rank}"
            )


def _connected(address: str, port: int, secret: bytes, request: dict[str, object]) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_S
    connection = network.connected(address, port, _CONNECT_S)
    channel = authenticate_client(
        connection, secret, _PURPOSE, deadline, f"horovod.run at {network.at_port(address, port)}"
    )
    channel.send(request, deadline)
    return channel.detach()


def _pieces(connection: socket.socket, peer: str) -> Iterator[bytes]:
    """The bytes that the length announces, as they come. Nothing is held, whatever was announced."""
    head = b"".join(_received(connection, _LENGTH.size, peer))
    yield from _received(connection, _LENGTH.unpack(head)[0], peer)


def _received(connection: socket.socket, count: int, peer: str) -> Iterator[bytes]:
    while count:
        piece = connection.recv(min(count, _CHUNK_BYTES))
        if not piece:
            raise ChannelError(f"{peer} closed the connection")
        yield piece
        count -= len(piece)
