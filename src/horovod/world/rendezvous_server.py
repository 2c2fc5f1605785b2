# SPDX-License-Identifier: Apache-2.0
"""The place where the ranks of one job meet: a key-value store, open to holders of the job's secret.

It runs in horovodrun, or in rank 0 if another launcher has started the ranks (launchers/job.py).

This file handles the connections; rendezvous_store.py handles the requests.

One thread serves all ranks. Each connection proves the secret on a separate thread (channel.Listener), which ends when
the connection has joined the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import socket
import threading
import time
from typing import Any

from horovod.world import network
from horovod.world.channel import Channel, ChannelError, Listener, MessageError, Unpacker, pack
from horovod.world.rendezvous import PURPOSE
from horovod.world.rendezvous_store import Store, Wait, WorkerListener

__all__ = ["RendezvousServer"]

_READ_BYTES = 1 << 16
# A peer that has no such connection answers at once that it has none; one that is only out of reach has minutes.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 30, socket.TCP_KEEPCNT: 10}


@dataclasses.dataclass
class _Starting:
    """A rank between the requests `enter` and `started`. `end`: how it will have ended if its connection ends."""

    rank: int
    end: str


class _Connection:
    """One rank's connection: requests in, answers out.

    The peer may send requests without reading answers. While answers pile up, no request is read from it.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.socket = connection
        self.unpacker = Unpacker(peer)
        self.unsent = bytearray()
        self.waits: list[Wait] = []
        self.starting: _Starting | None = None  # who is in init at the other end


class RendezvousServer:
    """Listens on `address` at a free port from construction to `close`. All methods may be called from any thread.

    `notices_ends`: a rank whose connection ends in init is gone; only the server can notice. Children that this process
    forks hold none of its sockets.
    """

    def __init__(
        self,
        secret: bytes,
        address: str = "127.0.0.1",
        *,
        notices_ends: bool = False,
        handshake_timeout_s: float = 10.0,
    ) -> None:
        self._store = Store()
        self._notices_ends = notices_ends
        self._lock = threading.Lock()  # guards the store and what is below
        self._starting: set[_Connection] = set()  # of ranks that are in init
        self._unstarted: set[int] = set()  # ranks that have left init without a start
        self._start_is_over = threading.Condition(self._lock)
        self._new: list[Channel] = []
        self._answered: list[_Connection] = []
        self._closing = False
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        listening = network.listening(address)
        self.address: str = address
        self.port: int = listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="horovod-rendezvous", daemon=True)
        self._thread.start()
        self._listener = Listener(listening, secret, PURPOSE, self._join, handshake_timeout_s=handshake_timeout_s)

    @property
    def refused(self) -> int:
        """How many connections could not prove the secret."""
        return self._listener.refused

    def put(self, key: str, value: Any) -> None:
        with self._lock:
            self._store.put(key, value)
        self._wake()

    def get(self, key: str) -> Any:
        """The value, or None; does not wait."""
        with self._lock:
            return self._store.get(key)

    def compare_and_set(self, key: str, value: Any) -> Any:
        """Stores `value` if the key is new; returns the value that stands then."""
        with self._lock:
            standing = self._store.compare_and_set(key, value)
        self._wake()
        return standing

    def failure(self) -> dict[str, Any] | None:
        """The recorded cause of the newest generation that any rank has entered, if there is one."""
        with self._lock:
            record = self._store.get(f"failure/{self._store.generation}")
        return record if isinstance(record, dict) else None

    def rejoined(self, size: int) -> dict[str, Any] | None:
        """The recorded cause of the generation before, if it is a rank that left it and has begun a new one alone."""
        with self._lock:
            record = self._store.get(f"failure/{self._store.generation - 1}")
            entered = self._store.entered()
        if not isinstance(record, dict) or record.get("code") != "RANK_LEFT" or len(entered) == size:
            return None
        return record if record.get("rank") in entered else None

    def entered(self) -> list[int]:
        """The ranks that have entered the newest generation, in order."""
        with self._lock:
            return self._store.entered()

    def record_failure(self, rank: int, text: str) -> None:
        """The launcher's own word about the newest generation, unless a rank was faster."""
        with self._lock:
            key = f"failure/{self._store.generation}"
        self.compare_and_set(key, {"rank": rank, "code": "RANK_LOST", "text": text})

    def gone(self, rank: int, text: str) -> None:
        """A rank has ended or stopped: see Store.gone."""
        with self._lock:
            self._store.gone(rank, text)
        self._wake()

    def in_init(self) -> set[int]:
        """The ranks that are in init, or have left it without a start: these may still be saying why."""
        with self._lock:
            return {one.starting.rank for one in self._starting if one.starting is not None} | self._unstarted

    def assign(self, places: list[dict[str, Any]]) -> None:
        """Sets the place that each rank is told from now on: see Store.assign."""
        with self._lock:
            self._store.assign(places)

    def listen(self, listener: WorkerListener) -> None:
        """Has the words of an elastic job's workers told to `listener`, on this server's thread: see Store.listen."""
        with self._lock:
            self._store.listen(listener)

    def lead(self, generation: int, places: list[dict[str, Any]]) -> None:
        """Opens a generation that the launcher has made: see Store.lead."""
        with self._lock:
            self._store.lead(generation, places)

    def tell(self, worker: int, word: Any) -> None:
        """Sends a word to a worker: see Store.tell."""
        with self._lock:
            self._store.tell(worker, word)
        self._wake()

    def forget_worker(self, worker: int) -> None:
        """The worker has ended."""
        with self._lock:
            self._store.forget_worker(worker)

    def wait_for_starts(self, timeout_s: float) -> None:
        """Returns when no rank is in init any more: each has started, or heard why it cannot; or the time is up."""
        with self._start_is_over:
            self._start_is_over.wait_for(lambda: not self._starting, timeout_s)

    def statuses(self) -> dict[str, Any]:
        """Returns the statuses of all ranks: Statuses.view, with all pages in one."""
        with self._lock:
            whole = page = self._store.statuses.view(0, time.monotonic())
            while "next" in page:
                page = self._store.statuses.view(page["next"], time.monotonic())
                whole["ranks"].update(page["ranks"])
            return whole

    def close(self) -> None:
        """Idempotent."""
        if not self._thread.is_alive():
            return
        self._listener.close()
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join()
        self._selector.close()
        os.close(self._woken)
        os.close(self._waker)

    def _join(self, channel: Channel) -> None:
        """On the thread of the handshake."""
        peer = channel.peer
        taken = Channel(channel.detach(), peer)
        with self._lock:
            self._new.append(taken)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is about to wake in any case
            os.write(self._waker, b"x")

    # the serving thread

    def _serve(self) -> None:
        while True:
            with self._lock:
                next_s = self._store.expire(time.monotonic())
                new, self._new = self._new, []
                answered, self._answered = self._answered, []
                closing = self._closing
            for channel in new:
                self._add(channel)
            for connection in answered:
                self._send(connection)
            if closing:
                break
            timeout_s = None if next_s is None else max(0.0, next_s - time.monotonic())
            for key, events in self._selector.select(timeout_s):
                if key.fd == self._woken:
                    os.read(self._woken, _READ_BYTES)
                elif events & selectors.EVENT_WRITE:
                    self._send(key.data)
                else:
                    self._receive(key.data)
        for connection in list(self._connections):
            self._drop(connection)

    def _add(self, channel: Channel) -> None:
        connection = _Connection(channel.detach(), channel.peer)
        connection.socket.setblocking(False)
        # Else a connection that the network has broken, and that only the client knows of, would stay for ever.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.socket.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connections.add(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_READ_BYTES)
            if not data:
                raise ChannelError("closed")
            requests = connection.unpacker.feed(data)
        except BlockingIOError:
            return
        except OSError:  # a peer that went away, or that speaks something else: no business of the others
            self._drop(connection)
            return
        for request in requests:
            self._ask(connection, request)
        self._send(connection)

    def _ask(self, connection: _Connection, request: Any) -> None:
        """The answer may come now or later, from any thread, but always with the lock."""

        # A client that has several requests under way numbers them.
        number = {"id": request["id"]} if isinstance(request, dict) and isinstance(request.get("id"), int) else {}

        def reply(answer: dict[str, Any]) -> None:
            _follow_start(connection, request, answer)
            self._count(connection)
            try:
                connection.unsent += pack({**answer, **number}, connection.unpacker.peer)
            except MessageError as error:
                connection.unsent += pack({"error": str(error), **number}, connection.unpacker.peer)
            self._answered.append(connection)

        with self._lock:
            wait = self._store.ask(request, time.monotonic(), reply)
        if wait is not None:
            connection.waits = [known for known in connection.waits if not known.over] + [wait]

    def _send(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        with self._lock:
            try:
                while connection.unsent:
                    del connection.unsent[: connection.socket.send(connection.unsent)]
                wanted = selectors.EVENT_READ
            except BlockingIOError:
                wanted = selectors.EVENT_WRITE  # it must take what it asked for before it asks again
            except OSError:
                wanted = 0
        if wanted == 0:
            self._drop(connection)
        elif self._selector.get_key(connection.socket).events != wanted:
            self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            for wait in connection.waits:
                wait.cancel()
            if self._notices_ends and not self._closing and connection.starting is not None:
                self._store.gone(connection.starting.rank, connection.starting.end)
                self._wake()
            if connection.starting is not None:
                self._unstarted.add(connection.starting.rank)
            self._starting.discard(connection)
            self._start_is_over.notify_all()
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _count(self, connection: _Connection) -> None:
        """The caller holds the lock."""
        if connection.starting is not None:
            self._starting.add(connection)
            self._unstarted.discard(connection.starting.rank)
        elif connection in self._starting:
            self._starting.remove(connection)
            self._start_is_over.notify_all()


def _follow_start(connection: _Connection, request: Any, answer: dict[str, Any]) -> None:
    """Follows a rank's start by its requests. A second process of the same rank has no start."""
    match request, answer:
        case {"op": "enter", "rank": rank}, {"entry": entry} if "other" not in entry:
            who = request.get("who")
            process = f" (process {who.get('pid')} on {who.get('machine')})" if isinstance(who, dict) else ""
            connection.starting = _Starting(rank, f"rank {rank}{process} ended in init")
        case {"op": "abandon", "why": str(why)}, {} if connection.starting is not None and why:
            connection.starting.end = f"rank {connection.starting.rank} gave up: {why}"
        case {"op": "started"}, _:
            connection.starting = None
