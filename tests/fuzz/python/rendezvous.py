# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: what an authenticated peer may say to the rendezvous, and a rendezvous to a rank. Each line is one
message; one that is not JSON ends the connection, as the channel does."""

import json
import threading
from typing import Any
from unittest import mock

from horovod.world import rendezvous_store
from horovod.world.channel import ChannelError, MessageError
from horovod.world.rendezvous import RankGone, Rendezvous, _Connection

MEASURED = {
    "horovod/world/rendezvous_store.py": ["Store", "_Worker"],
    "horovod/world/rendezvous.py": [
        "Rendezvous.put",
        "Rendezvous.compare_and_set",
        "Rendezvous.get",
        "Rendezvous.get_many",
        "Rendezvous.enter",
        "Rendezvous.entered",
        "Rendezvous._ask",
        "Rendezvous._checked",
        "_Connection._deliver",
    ],
}
LONGEST = 8192


class _Peer:
    """Stands for a Channel: gives the messages of the input, and takes what is answered."""

    def __init__(self, lines: list[bytes], is_elastic: bool = False) -> None:
        self._lines = lines
        self.is_elastic = is_elastic

    def receive(self, deadline: float | None = None) -> Any:
        if not self._lines:
            raise ChannelError("peer closed the connection")
        try:
            return json.loads(self._lines.pop(0))
        except (ValueError, RecursionError) as error:
            raise ChannelError("peer sent a message that is not JSON") from error

    def send(self, message: object, deadline: float | None = None) -> None:
        try:
            body = json.dumps(message)
        except RecursionError as error:
            raise MessageError("too deep") from error
        if len(body) > 4096:
            raise MessageError("too long")

    def close(self) -> None:
        self._lines = []


def run(data: bytes) -> None:
    peer = _Peer(data[1:].split(b"\n"), is_elastic=bool(data) and data[0] % 4 == 2)
    if not data or data[0] % 2 == 0:
        with mock.patch.object(rendezvous_store, "MAX_KEYS", 3):
            _serve(peer)
    else:
        _ask(peer)


def _serve(peer: _Peer) -> None:
    store = rendezvous_store.Store()
    if peer.is_elastic:
        store.listen(store.tell)  # a launcher that says again what it hears
    now_s, asked = 0.0, 0

    def reply(answer: dict[str, Any]) -> None:
        try:
            peer.send(answer)
        except MessageError:
            peer.send({"error": "too long"})

    waits = []
    try:
        while True:
            request = peer.receive()
            asked += 1
            now_s += 1.0
            wait = store.ask(request, now_s, reply)
            waits += [wait] if wait is not None else []
            if asked % 5 == 0:
                store.expire(now_s)
            if asked % 7 == 0:
                store.gone(asked % 3, "it ended")
            if asked % 11 == 0:
                store.assign([{"local_rank": rank} for rank in range(asked % 4)])
            if asked % 13 == 0 and waits:
                waits[-1].cancel()
            if asked % 6 == 0:
                store.record_failure(asked % 3, "it was lost")
                assert isinstance(store.failure(), dict | None)
                assert isinstance(store.rejoined(asked % 3), dict | None)
            if asked % 8 == 0 and peer.is_elastic:
                store.lead(store._generation + 1, [{"local_rank": 0}])
                store.forget_worker(asked % 3)
    except ChannelError:
        pass
    assert store.get("no key that JSON can hold: \0") is None
    assert store._generation <= asked
    store.expire(float("inf"))
    assert all(wait.over for wait in waits), "a wait was never answered"


def _ask(peer: Any) -> None:
    """Each answer goes the way from a connection to the request that it answers."""
    client = Rendezvous("127.0.0.1", 0, b"")
    connection: Any = object.__new__(_Connection)
    connection._channel, connection._lock, connection._takers = mock.Mock(peer="the rendezvous"), threading.Lock(), {}

    def exchange(request: dict[str, Any], deadline: float) -> Any:
        answers: list[Any] = []
        connection._takers[1] = answers.append
        while not answers:
            connection._deliver(peer.receive())
        return answers[0]

    with mock.patch.object(client, "_exchange", exchange):
        while True:
            try:
                client.put("key", 1)
                client.compare_and_set("key", 1)
                assert isinstance(client.get_many(["key"]), dict)
                client.get("key")
                assert isinstance(client.enter(0, "process")["generation"], int)
                assert all(isinstance(rank, int) for rank in client.entered(0))
            except RankGone:
                continue
            except ChannelError:
                return
