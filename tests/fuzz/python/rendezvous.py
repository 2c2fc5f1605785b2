# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: what an authenticated peer may say to the rendezvous, and a rendezvous to a rank. Each line is one
message; one that is not JSON ends the connection, as the channel does."""

import json
from typing import Any
from unittest import mock

from horovod.core.channel import ChannelError, MessageError
from horovod.core.rendezvous import Rendezvous
from horovod.launcher import rendezvous_server

MEASURED = {
    "horovod/launcher/rendezvous_server.py": ["RendezvousServer"],
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
    to_server = not data or data[0] % 2 == 0
    peer = _Peer(data[1:].split(b"\n"))
    if to_server:
        with (
            mock.patch.object(rendezvous_server, "MAX_WAIT_S", 0),
            mock.patch.object(rendezvous_server, "MAX_KEYS", 3),
            mock.patch.object(rendezvous_server, "Listener"),
        ):
            _serve(peer)
    else:
        _ask(peer)


def _serve(peer: Any) -> None:
    server = rendezvous_server.RendezvousServer(b"")
    try:
        server._serve(peer)
    except ChannelError:
        pass
    finally:
        failure = server.failure()
        assert failure is None or isinstance(failure, dict)
        assert server.get("no key that JSON can hold: \0") is None
        assert server.refused is not None
        server.close()


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
