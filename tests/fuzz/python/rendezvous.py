# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: what an authenticated peer may say to the rendezvous, and a rendezvous to a rank. Each line is one
message; one that is not JSON ends the connection, as the channel does."""

import json
from typing import Any
from unittest import mock

from horovod.core.channel import ChannelError, MessageError
from horovod.core.rendezvous import Rendezvous
from horovod.launcher import rendezvous_store

MEASURED = {
    "horovod/launcher/rendezvous_store.py": ["Store"],
    "horovod/core/rendezvous.py": [
        "Rendezvous.put",
        "Rendezvous.compare_and_set",
        "Rendezvous.get",
        "Rendezvous.get_many",
        "Rendezvous._ask",
        "Rendezvous._drop",
    ],
}
LONGEST = 8192


class _Peer:
    """Stands for a Channel: gives the messages of the input, and takes what is answered."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

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
    peer = _Peer(data[1:].split(b"\n"))
    if not data or data[0] % 2 == 0:
        with mock.patch.object(rendezvous_store, "MAX_KEYS", 3):
            _serve(peer)
    else:
        _ask(peer)


def _serve(peer: _Peer) -> None:
    store = rendezvous_store.Store()
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
                store.replaced(asked % 3)
            if asked % 13 == 0 and waits:
                waits[-1].cancel()
    except ChannelError:
        pass
    assert store.get("no key that JSON can hold: \0") is None
    assert store.generation <= asked
    store.expire(float("inf"))
    assert all(wait.over for wait in waits), "a wait was never answered"


def _ask(peer: Any) -> None:
    client = Rendezvous("127.0.0.1", 0, b"")
    with mock.patch.object(client, "_connected", lambda deadline: peer):
        try:
            client.put("key", 1)
            client.compare_and_set("key", 1)
            values = client.get_many(["key"])
            assert isinstance(values, dict)
            client.get("key")
        except ChannelError:
            pass
        client._channel = peer
        client.close()
