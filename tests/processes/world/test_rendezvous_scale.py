# SPDX-License-Identifier: Apache-2.0
"""One rendezvous serves thousands of ranks: each holds a connection, waits, and is answered; no thread stays for it."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from horovod.world.channel import Channel, authenticate_client
from horovod.world.rendezvous import PURPOSE, Rendezvous
from horovod.world.rendezvous_server import RendezvousServer

RANKS = 2000
SECRET = b"s" * 32


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = RendezvousServer(SECRET)
    yield server
    server.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(server: RendezvousServer) -> Channel:
    connection = socket.create_connection((server.address, server.port))
    return authenticate_client(connection, SECRET, PURPOSE, time.monotonic() + 60, "the rendezvous")


def test_two_thousand_ranks_meet(server: RendezvousServer) -> None:
    threads = threading.active_count()
    channels = [connected(server) for _ in range(RANKS)]
    for rank, channel in enumerate(channels):
        channel.send({"op": "enter", "rank": rank, "process": str(rank)})
        channel.send({"op": "put", "key": f"rank/{rank}", "value": {"address": "x" * 200}})
        channel.send({"op": "get", "keys": ["world"], "timeout_ms": 60_000})
    coordinator = Rendezvous(server.address, server.port, SECRET)
    records = coordinator.get_many([f"rank/{rank}" for rank in range(RANKS)], 60.0)
    assert len(records) == RANKS
    assert threading.active_count() <= threads + 1, "a connection keeps a thread"
    coordinator.put("world", {"hosts": RANKS})
    for channel in channels:
        answers = [channel.receive(time.monotonic() + 60) for _ in range(3)]
        assert answers == [{"entry": {"generation": 0}}, {}, {"values": {"world": {"hosts": RANKS}}}]
        channel.close()
    coordinator.close()
