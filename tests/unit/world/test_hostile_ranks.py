# SPDX-License-Identifier: Apache-2.0
"""Ranks that hold the secret and say what makes no sense: an error that names what is wrong, and nothing else stops."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from horovod.core.exceptions import StartError
from horovod.world import channel, meeting
from horovod.world.channel import ChannelError, Listener, MessageError, authenticate_client
from horovod.world.rendezvous import Rendezvous
from horovod.world.rendezvous_server import RendezvousServer

SECRET = b"s" * 32


def soon() -> float:
    return time.monotonic() + 10


def test_numbers_and_depths_that_json_has_and_python_has_not_are_answered() -> None:
    server = RendezvousServer(SECRET)
    link = authenticate_client(
        socket.create_connection((server.address, server.port)), SECRET, "rendezvous", soon(), "server"
    )
    server.put("there", 1)
    for timeout_ms in (10**400, -(10**400), True):
        link.send({"op": "get", "keys": ["there"], "timeout_ms": timeout_ms}, soon())
        assert link.receive(soon()) == {"values": {"there": 1}}
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    server.put("deep", deep)
    server.put("long", "x" * channel.MAX_FRAME_BYTES)
    for key in ("deep", "long"):
        link.send({"op": "get", "keys": [key], "timeout_ms": 0}, soon())
        assert "error" in link.receive(soon())
    link.send({"op": "enter", "rank": 10**400, "process": "p", "id": 10**400}, soon())
    assert link.receive(soon()) == {"entry": {"generation": 0}, "id": 10**400}
    link.close()
    server.close()


@pytest.mark.parametrize("answer", [None, 7, [], {}, {"error": "no"}, {"values": []}, {"values": None}])
def test_an_answer_of_another_form_is_an_error(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rendezvous, "_exchange", lambda *_: answer)
    client = Rendezvous("127.0.0.1", 4711, SECRET)
    with pytest.raises(ChannelError, match="rendezvous at 127.0.0.1:4711"):
        client.get("key")


@pytest.mark.parametrize("answer", [None, 7, [], {}, {"id": "1"}, {"id": [1]}])
def test_an_answer_without_a_request_ends_the_connection(answer: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            server = channel.authenticate_server(connection, SECRET, "rendezvous", soon(), "rank")
            server.receive(soon())
            server.send(answer, soon())
            with pytest.raises(ChannelError):  # hung up
                server.receive(soon())
            server.close()

        client = Rendezvous("127.0.0.1", listening.getsockname()[1], SECRET)
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            with pytest.raises(ChannelError, match="answered without saying what"):
                client.get("key")
            client.close()
            served.result()


def test_a_message_that_cannot_be_sent_leaves_the_connection_whole() -> None:
    ours, theirs = socket.socketpair()
    here, there = channel.Channel(ours, "peer"), channel.Channel(theirs, "peer")
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for message in (deep, "x" * channel.MAX_FRAME_BYTES):
        with pytest.raises(MessageError):
            here.send(message, soon())
    here.send("next", soon())
    assert there.receive(soon()) == "next"
    here.close()
    there.close()


def record(fields: dict[str, tuple[type, ...]], **changes: Any) -> dict[str, Any]:
    values = {str: "x", int: 1, list: [], dict: {}}
    return {**{name: values[kinds[0]] for name, kinds in fields.items()}, **changes}


KINDS = {name: getattr(meeting, name) for name in ("LEADER", "MEMBER", "SETTINGS", "HOST", "OUTCOME")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_with_every_field_of_its_type_is_taken(kind: str) -> None:
    meeting.check_record("rank 3", record(KINDS[kind], more=1), KINDS[kind])


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in KINDS[kind]])
@pytest.mark.parametrize("value", [1.5, object])
def test_a_field_of_another_type_is_named_with_its_rank(kind: str, name: str, value: Any) -> None:
    fields = KINDS[kind]
    with pytest.raises(StartError, match=rf"rank 3 published a record that cannot be read: {name} missing.*\nhint:"):
        meeting.check_record("rank 3", record(fields, **{name: value}), fields)
    without = record(fields)
    del without[name]
    with pytest.raises(StartError, match=name):
        meeting.check_record("rank 3", without, fields)


@pytest.mark.parametrize("value", [None, 7, [], "text"])
def test_a_record_that_is_none_is_named_with_its_rank(value: Any) -> None:
    with pytest.raises(StartError, match="rank 2 published a record that cannot be read"):
        meeting.check_record("rank 2", value, meeting.OUTCOME)


def test_a_listener_without_a_thread_to_spare_turns_one_away_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    served = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, SECRET, "p", lambda _: served.set())
    real_start = threading.Thread.start
    refused = []

    def start(thread: threading.Thread) -> None:
        if thread.name == "horovod-peer" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with socket.create_connection(listening.getsockname(), timeout=10) as turned_away:
        assert turned_away.recv(1) == b""
    authenticate_client(socket.create_connection(listening.getsockname()), SECRET, "p", soon(), "server").close()
    assert served.wait(10) and listener.refused == 1
    listener.close()


def test_handshakes_under_way_are_bounded_however_fast_connections_come() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    before = threading.active_count()
    listener = Listener(listening, SECRET, "p", lambda _: None, max_pending=4, handshake_timeout_s=60)
    most = 0
    crowd = []
    for _ in range(300):
        crowd.append(socket.create_connection(listening.getsockname()))
        most = max(most, threading.active_count() - before)
    assert most <= 1 + 2 * 4
    for connection in crowd:
        connection.close()
    listener.close()
    assert threading.active_count() <= before
