# SPDX-License-Identifier: Apache-2.0
"""Connections that prove the job's secret before a single byte of a peer is interpreted; then JSON messages in frames.

Serves the start of a world: the rendezvous, and every link whose socket is handed to the native core afterwards.

The handshake, all fields of fixed size, N = 32 random bytes, M = HMAC-SHA256(secret, role, purpose, both nonces):

    client -> server   "HVD1" Nc
    server -> client   "HVD1" Ns M("server")
    client -> server   M("client")

Both sides prove the secret over both fresh nonces, so a recorded handshake is worth nothing; the role keeps one side's
proof from being sent back to it, the purpose keeps a proof for one kind of connection from being used for another. The
server holds 100 bytes for a peer it does not know yet. A frame is a length (4 bytes, big-endian) and that many bytes of
JSON.

Nothing is ever read beyond the current frame, so that `detach` gives a socket with no byte lost. Every read and write
has one deadline for the whole of it, not one for each piece: a peer that sends a byte a second does not prolong it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from horovod.world.forks import accept, close_in_forked_child
from horovod.world.network import at_port

__all__ = [
    "AuthenticationError",
    "Channel",
    "ChannelError",
    "Listener",
    "MessageError",
    "ProtocolError",
    "UnreachableError",
    "Unpacker",
    "authenticate_client",
    "authenticate_server",
    "pack",
]

MAX_FRAME_BYTES = 1 << 20
_MAGIC = b"HVD1"
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct(">I")


class ChannelError(ConnectionError):
    """The connection broke, timed out, or the peer does not speak this protocol."""


class UnreachableError(ChannelError):
    """No process answers at the peer's address: none listens there, or a network or a firewall refuses the way."""


class ProtocolError(ChannelError):
    """The peer is something else than this project."""


class AuthenticationError(ChannelError):
    """The peer could not prove the job's secret for this purpose."""


class MessageError(ChannelError):
    """This side's message cannot be sent: too long, or too deep for JSON. Nothing of it has left."""


class Channel:
    """An authenticated connection that carries JSON messages. Owns its socket until `detach`. One user at a time."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self._socket: socket.socket | None = connection
        self.peer = peer

    def send(self, message: object, deadline: float | None = None) -> None:
        """Blocks until the kernel took the frame or `deadline` (time.monotonic()) passed. Raises ChannelError."""
        _send_all(self._open(), pack(message, self.peer), deadline, self.peer)

    def receive(self, deadline: float | None = None) -> Any:
        """Blocks until one whole frame came or `deadline` passed. Raises ChannelError."""
        connection = self._open()
        length = _length(_receive_exactly(connection, _LENGTH.size, deadline, self.peer), self.peer)
        return _parse(_receive_exactly(connection, length, deadline, self.peer), self.peer)

    def fileno(self) -> int:
        return self._open().fileno()

    @property
    def connection(self) -> socket.socket:
        """The socket, still owned by the channel; for passing descriptors between two messages."""
        return self._open()

    def shut(self) -> None:
        """Ends what its user waits for. The descriptor stays the user's, who may be about to use it."""
        connection = self._socket
        if connection is not None:
            _shut(connection)

    def detach(self) -> socket.socket:
        """Gives the blocking socket, and its ownership, to the caller; the channel is closed from then on."""
        connection = self._open()
        connection.settimeout(None)
        self._socket = None
        return connection

    def close(self) -> None:
        """Also wakes another thread that blocks in this channel. Harmless when closed or detached."""
        connection, self._socket = self._socket, None
        if connection is not None:
            _shut(connection)
            connection.close()

    def _open(self) -> socket.socket:
        if self._socket is None:
            raise ChannelError(f"the connection to {self.peer} is closed")
        return self._socket


class Unpacker:
    """Cuts a stream into messages as its bytes come; holds at most one unfinished frame."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are complete now. Raises ChannelError, after which the stream is worth nothing."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _length(self._buffer[: _LENGTH.size], self.peer)
            if len(self._buffer) < end:
                break
            messages.append(_parse(self._buffer[_LENGTH.size : end], self.peer))
            del self._buffer[:end]
        return messages


def pack(message: object, peer: str) -> bytes:
    """The message as a frame. Raises MessageError if it cannot be one."""
    try:
        body = json.dumps(message, separators=(",", ":")).encode()
    except RecursionError as error:
        raise MessageError(f"a message to {peer} is nested too deeply") from error
    if len(body) > MAX_FRAME_BYTES:
        raise MessageError(f"a message of {len(body)} bytes to {peer} exceeds {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def _length(prefix: bytes | bytearray, peer: str) -> int:
    length: int = _LENGTH.unpack(prefix)[0]
    if length > MAX_FRAME_BYTES:
        raise ChannelError(f"{peer} announced a message of {length} bytes; at most {MAX_FRAME_BYTES} are taken")
    return length


def _parse(body: bytes | bytearray, peer: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"{peer} sent a message that is not JSON: {error}") from error


def authenticate_client(connection: socket.socket, secret: bytes, purpose: str, deadline: float, peer: str) -> Channel:
    """The connecting side's handshake. Takes the socket over: it is closed when this raises."""
    try:
        _send_without_delay(connection)
        nonce = os.urandom(_NONCE_BYTES)
        _send_all(connection, _MAGIC + nonce, deadline, peer)
        answer = _receive_exactly(connection, len(_MAGIC) + _NONCE_BYTES + _PROOF_BYTES, deadline, peer)
        if not answer.startswith(_MAGIC):
            raise ProtocolError(f"{peer} does not speak Horovod's protocol")
        nonces = nonce + answer[len(_MAGIC) : len(_MAGIC) + _NONCE_BYTES]
        if not hmac.compare_digest(answer[-_PROOF_BYTES:], _proof(secret, b"server", purpose, nonces)):
            raise AuthenticationError(f"{peer} proved another secret than this process holds")
        _send_all(connection, _proof(secret, b"client", purpose, nonces), deadline, peer)
    except BaseException:
        connection.close()
        raise
    return Channel(connection, peer)


def authenticate_server(connection: socket.socket, secret: bytes, purpose: str, deadline: float, peer: str) -> Channel:
    """The accepting side's handshake. Takes the socket over: it is closed when this raises."""
    try:
        _send_without_delay(connection)
        hello = _receive_exactly(connection, len(_MAGIC) + _NONCE_BYTES, deadline, peer)
        if not hello.startswith(_MAGIC):
            raise ProtocolError(f"{peer} does not speak Horovod's protocol")
        nonce = os.urandom(_NONCE_BYTES)
        nonces = hello[len(_MAGIC) :] + nonce
        _send_all(connection, _MAGIC + nonce + _proof(secret, b"server", purpose, nonces), deadline, peer)
        proof = _receive_exactly(connection, _PROOF_BYTES, deadline, peer)
        if not hmac.compare_digest(proof, _proof(secret, b"client", purpose, nonces)):
            raise AuthenticationError(f"{peer}, which connected, proved another secret than this process holds")
    except BaseException:
        connection.close()
        raise
    return Channel(connection, peer)


class Listener:
    """Accepts connections, lets each prove the secret, and hands it to `serve`.

    `serve` runs on that connection's own thread. It may detach the channel; otherwise it is closed when `serve`
    returns. At most `max_pending` connections may be unauthenticated at a time: one more drops the oldest, so that idle
    strangers cannot keep ranks out. `refused` counts the connections that were turned away. Owns the listening socket.
    `close` ends all threads. Not more than twice `max_pending` threads are ever in a handshake, however fast
    connections come: the next one is accepted when one of them has ended. A forked child holds none of these sockets.
    """

    def __init__(
        self,
        listening: socket.socket,
        secret: bytes,
        purpose: str,
        serve: Callable[[Channel], None],
        *,
        max_pending: int = 256,
        handshake_timeout_s: float = 10.0,
    ) -> None:
        close_in_forked_child(listening)
        listening.setblocking(False)
        self._listening = listening
        self._secret = secret
        self._purpose = purpose
        self._serve = serve
        self._max_pending = max_pending
        self._handshake_timeout_s = handshake_timeout_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pending: list[socket.socket] = []
        self._handshakes = threading.BoundedSemaphore(2 * max_pending)
        self._channels: set[Channel] = set()
        self._threads: set[threading.Thread] = set()
        self.refused = 0
        self._accepting = threading.Thread(target=self._accept, name=f"horovod-{purpose}", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        self._closing.set()
        _shut(self._listening)
        self._accepting.join()
        self._listening.close()
        with self._lock:
            for connection in self._pending:
                _shut(connection)
            for channel in self._channels:
                channel.shut()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, address = accept(self._listening)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._closing.wait(0.05)  # until a descriptor is free again
                    continue
                if self._closing.is_set() or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                continue  # the peer was gone before it was accepted
            peer = at_port(*address[:2]) if isinstance(address, tuple) else "a process of this host"
            thread = threading.Thread(target=self._handle, args=(connection, peer), name="horovod-peer", daemon=True)
            self._handshakes.acquire()
            with self._lock:
                if len(self._pending) >= self._max_pending:
                    _shut(self._pending.pop(0))
                self._pending.append(connection)
                self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # no more threads: this one is turned away, and the next may find room
                self._handshakes.release()
                connection.close()
                with self._lock:
                    self._forget(connection)
                    self._threads.discard(thread)
                    self.refused += 1
                self._closing.wait(0.05)

    def _handle(self, connection: socket.socket, peer: str) -> None:
        channel = None
        try:
            try:
                deadline = time.monotonic() + self._handshake_timeout_s
                channel = authenticate_server(connection, self._secret, self._purpose, deadline, peer)
            finally:
                self._handshakes.release()
            with self._lock:
                self._forget(connection)
                self._channels.add(channel)
            if not self._closing.is_set():
                self._serve(channel)
        except ChannelError:
            # A stranger, or a peer that went away: no business of the others.
            with self._lock:
                self.refused += channel is None
        finally:
            with self._lock:
                self._forget(connection)
                self._threads.discard(threading.current_thread())
                if channel is not None:
                    self._channels.discard(channel)
            if channel is not None:
                channel.close()

    def _forget(self, connection: socket.socket) -> None:
        if connection in self._pending:
            self._pending.remove(connection)


def _proof(secret: bytes, role: bytes, purpose: str, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join([b"horovod handshake 1", role, purpose.encode(), nonces]), "sha256")


def _remaining(deadline: float | None, peer: str) -> float | None:
    if deadline is None:
        return None
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise ChannelError(f"{peer} did not answer in time")
    return remaining


def _receive_exactly(connection: socket.socket, count: int, deadline: float | None, peer: str) -> bytes:
    buffer = bytearray(count)
    view = memoryview(buffer)
    received = 0
    while received < count:
        try:
            connection.settimeout(_remaining(deadline, peer))
            got = connection.recv_into(view[received:])
        except ChannelError:
            raise
        except TimeoutError:
            raise ChannelError(f"{peer} did not answer in time") from None
        except OSError as error:
            raise ChannelError(f"{peer}: {error.strerror or error}") from error
        if got == 0:
            raise ChannelError(f"{peer} closed the connection")
        received += got
    return bytes(buffer)


def _send_all(connection: socket.socket, data: bytes, deadline: float | None, peer: str) -> None:
    try:
        connection.settimeout(_remaining(deadline, peer))
        connection.sendall(data)
    except ChannelError:
        raise
    except TimeoutError:
        raise ChannelError(f"{peer} did not take a message in time") from None
    except OSError as error:
        raise ChannelError(f"{peer}: {error.strerror or error}") from error


def _send_without_delay(connection: socket.socket) -> None:
    # Two messages in a row, as a proof and the request behind it, would wait 40 ms for the peer's acknowledgement.
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _shut(connection: socket.socket) -> None:
    # Closing alone would not wake a thread that blocks in the socket. Not connected any more: nothing to wake.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
