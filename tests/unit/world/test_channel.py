# SPDX-License-Identifier: Apache-2.0
"""Nothing of a peer is interpreted before it proved the secret, and no peer can hold up or bring down the others."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.patience import LIMIT_S, wait_until

from horovod.world.channel import (
    MAX_FRAME_BYTES,
    AuthenticationError,
    Channel,
    ChannelError,
    Listener,
    authenticate_client,
    authenticate_server,
)
from horovod.world.rendezvous import RankGone, Rendezvous
from horovod.world.rendezvous_server import RendezvousServer

SECRET = b"s" * 32
OTHER = b"o" * 32
Pair = tuple[Channel, Channel]


def soon(seconds: float = LIMIT_S) -> float:
    return time.monotonic() + seconds


def shake(
    client_secret: bytes,
    server_secret: bytes,
    purposes: tuple[str, str] = ("p", "p"),
) -> tuple[Any, Any]:
    """Both sides' outcome of one handshake: a Channel or the error."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours, theirs = socket.create_connection(listening.getsockname()), listening.accept()[0]

    def side(act: Callable[..., Channel], *arguments: Any) -> Any:
        try:
            return act(*arguments, soon(), "peer")
        except ChannelError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        client = pool.submit(side, authenticate_client, ours, client_secret, purposes[0])
        server = pool.submit(side, authenticate_server, theirs, server_secret, purposes[1])
        return client.result(), server.result()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A client and a server that know each other."""
    client, server = shake(SECRET, SECRET)
    yield client, server
    client.close()
    server.close()


def test_both_sides_talk_after_the_handshake_and_detach_loses_no_byte(pair: Pair) -> None:
    client, server = pair
    for channel in pair:  # no message waits for the acknowledgement of the one before
        assert channel.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    client.send({"text": "ä\n", "n": [1, None]}, soon())
    client.connection.sendall(b"raw bytes behind the frame")
    assert server.receive(soon()) == {"text": "ä\n", "n": [1, None]}
    with server.detach() as raw:
        assert raw.recv(100) == b"raw bytes behind the frame" and raw.gettimeout() is None
    with pytest.raises(ChannelError, match="is closed"):
        server.receive(soon())


def test_messages_are_json_and_never_pickle(pair: Pair) -> None:
    pair[0].send({"a": 1}, soon())
    with pair[1].detach() as raw:
        (length,) = struct.unpack(">I", raw.recv(4))
        assert json.loads(raw.recv(length)) == {"a": 1}


@pytest.mark.parametrize("secrets", [(SECRET, OTHER), (OTHER, SECRET), (b"", SECRET)])
def test_a_wrong_secret_is_refused_on_both_sides(secrets: tuple[bytes, bytes]) -> None:
    client, server = shake(*secrets)
    assert isinstance(client, AuthenticationError) and "proved another secret than this process holds" in str(client)
    assert isinstance(server, ChannelError)


def test_a_proof_for_one_purpose_is_none_for_another() -> None:
    client, server = shake(SECRET, SECRET, ("link", "rendezvous"))
    assert isinstance(client, AuthenticationError) and isinstance(server, ChannelError)


@pytest.mark.parametrize("proof", ["none", "the server's"])
def test_a_client_that_does_not_check_the_server_is_still_refused(proof: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(authenticate_server, theirs, SECRET, "p", soon(), "peer")
        ours.sendall(b"HVD1" + bytes(32))
        answer = ours.recv(68, socket.MSG_WAITALL)
        assert len(answer) == 68
        ours.sendall(bytes(32) if proof == "none" else answer[-32:])
        with pytest.raises(AuthenticationError):
            outcome.result()


def test_a_recorded_handshake_is_worth_nothing() -> None:
    ours, middle_a = socket.socketpair()
    middle_b, theirs = socket.socketpair()
    with ThreadPoolExecutor(2) as pool:
        client = pool.submit(authenticate_client, ours, SECRET, "p", soon(), "peer")
        server = pool.submit(authenticate_server, theirs, SECRET, "p", soon(), "peer")
        hello = middle_a.recv(36, socket.MSG_WAITALL)
        middle_b.sendall(hello)
        middle_a.sendall(middle_b.recv(68, socket.MSG_WAITALL))
        proof = middle_a.recv(32, socket.MSG_WAITALL)
        middle_b.sendall(proof)
        client.result().close()
        server.result().close()
        again_a, again_b = socket.socketpair()
        replayed = pool.submit(authenticate_server, again_b, SECRET, "p", soon(), "peer")
        again_a.sendall(hello + proof)
        with pytest.raises(AuthenticationError):
            replayed.result()
    for connection in (middle_a, middle_b, again_a):
        connection.close()


def test_a_peer_that_drips_bytes_does_not_prolong_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while not stop.wait(0.02):
                ours.send(b"x")

    ours.send(b"H")
    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(ChannelError, match="did not answer in time"):  # 36 bytes would take it longer than this
        authenticate_server(theirs, SECRET, "p", soon(0.3), "peer")
    stop.set()
    thread.join()
    ours.close()


def test_a_peer_that_reads_nothing_does_not_hold_a_sender_beyond_the_deadline(pair: Pair) -> None:
    with pytest.raises(ChannelError, match="did not take a message in time"):
        for _ in range(100):
            pair[0].send("x" * 1_000_000, soon(0.2))


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (struct.pack(">I", MAX_FRAME_BYTES + 1), f"announced a message of {MAX_FRAME_BYTES + 1} bytes"),
        (struct.pack(">I", 0xFFFFFFFF), "announced a message of 4294967295 bytes"),
        (struct.pack(">I", 4) + b"\x80\x04]\x94", "is not JSON"),
        (struct.pack(">I", 100_000) + b"[" * 100_000, "is not JSON"),
        (struct.pack(">I", 0), "is not JSON"),
        (struct.pack(">I", 10) + b"half", "closed the connection"),
        (b"\0\0", "closed the connection"),
    ],
)
def test_a_bad_frame_is_an_error_that_names_the_peer(pair: Pair, frame: bytes, expected: str) -> None:
    client, server = pair
    client.connection.sendall(frame)
    client.close()
    with pytest.raises(ChannelError, match=expected) as caught:
        server.receive(soon())
    assert "peer" in str(caught.value)


def test_a_message_that_is_too_long_is_not_sent(pair: Pair) -> None:
    with pytest.raises(ChannelError, match="exceeds"):
        pair[0].send("x" * MAX_FRAME_BYTES, soon())


@given(garbage=st.binary(max_size=200))
@hypothesis_settings(max_examples=60)
def test_garbage_never_authenticates_and_raises_nothing_else(garbage: bytes) -> None:
    for act in (authenticate_server, authenticate_client):
        ours, theirs = socket.socketpair()
        ours.sendall(garbage)
        ours.shutdown(socket.SHUT_WR)
        with ours, pytest.raises(ChannelError):
            act(theirs, SECRET, "p", soon(), "peer")


# The rendezvous port, which any process of the machine can reach


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    server = RendezvousServer(SECRET, handshake_timeout_s=LIMIT_S)
    yield server
    server.close()


def client_of(server: RendezvousServer, secret: bytes = SECRET) -> Rendezvous:
    return Rendezvous(server.address, server.port, secret)


def test_values_are_put_waited_for_and_set_once(server: RendezvousServer) -> None:
    a, b = client_of(server), client_of(server)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(b.get_many, ["x", "y"], LIMIT_S)
        a.put("x", {"n": 1})
        a.put("y", None)
        assert waiting.result() == {"x": {"n": 1}, "y": None}
    assert b.get("z", 0.05) is None and b.get_many(["x", "z"], 0.05) == {"x": {"n": 1}}
    a.close()
    b.close()


def test_the_first_compare_and_set_wins_and_everybody_learns_it(server: RendezvousServer) -> None:
    clients = [client_of(server) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: clients[i].compare_and_set("failure/0", {"rank": i}), range(8)))
    assert all(value == won[0] for value in won) and server.failure() == won[0]
    for client in clients:
        client.close()


def test_the_failure_of_the_newest_generation_counts(server: RendezvousServer) -> None:
    client = client_of(server)
    assert client.enter(0, "process")["generation"] == 0
    server.put("failure/0", {"rank": 1})
    assert server.failure() == {"rank": 1}
    assert client.enter(0, "process")["generation"] == 1
    assert server.failure() is None
    server.record_failure(3, "rank 3 was stopped")
    assert server.failure() == {"rank": 3, "code": "RANK_LOST", "text": "rank 3 was stopped"}
    client.close()


def test_a_wrong_secret_is_a_clear_error_and_leaves_the_server_running(server: RendezvousServer) -> None:
    stranger = client_of(server, OTHER)
    with pytest.raises(AuthenticationError, match=rf"rendezvous at 127.0.0.1:{server.port} proved another secret"):
        stranger.put("x", 1)
    wait_until(lambda: server.refused == 1)
    client = client_of(server)
    assert client.get("x", 0.0) is None
    client.close()


@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04" * 500, b"HVD1", b"HVD1" + bytes(1000)])
def test_strangers_at_the_port_are_dropped_in_time(
    server: RendezvousServer, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._listener, "_handshake_timeout_s", 0.3)
    with socket.create_connection((server.address, server.port), timeout=LIMIT_S) as stranger:
        stranger.sendall(content)
        with contextlib.suppress(ConnectionResetError):  # closed with our bytes unread
            while stranger.recv(100):
                pass
    monkeypatch.undo()
    client = client_of(server)
    client.put("still", "here")
    client.close()


def test_requests_that_make_no_sense_are_answered_so(server: RendezvousServer) -> None:
    connection = socket.create_connection((server.address, server.port))
    channel = authenticate_client(connection, SECRET, "rendezvous", soon(), "server")
    for request in (None, 7, [], {"op": "get"}, {"op": "put", "key": 3, "value": 1}, {"op": "get", "keys": [["a"]]}):
        channel.send(request, soon())
        assert "error" in channel.receive(soon())
    channel.send({"op": "get", "keys": [["a"], "b"], "timeout_ms": 0}, soon())
    assert channel.receive(soon()) == {"values": {}}
    channel.close()


def test_idle_strangers_cannot_keep_ranks_out() -> None:
    served = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, SECRET, "p", lambda _: served.set(), max_pending=4, handshake_timeout_s=60)
    strangers = [socket.create_connection(listening.getsockname()) for _ in range(20)]
    wait_until(lambda: listener.refused >= 16)
    connection = socket.create_connection(listening.getsockname())
    authenticate_client(connection, SECRET, "p", soon(), "server").close()
    assert served.wait(LIMIT_S)
    listener.close()
    for stranger in strangers:
        stranger.close()


def test_close_waits_for_what_serves() -> None:
    serving, may_end = threading.Event(), threading.Event()

    def serve(_: Channel) -> None:
        serving.set()
        may_end.wait(60)

    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener(listening, SECRET, "p", serve)
    connection = socket.create_connection(listening.getsockname())
    channel = authenticate_client(connection, SECRET, "p", soon(), "server")
    assert serving.wait(LIMIT_S)
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(listener.close)
        with pytest.raises(concurrent.futures.TimeoutError):
            closed.result(0.1)
        may_end.set()
        closed.result(LIMIT_S)
    channel.close()


def test_close_ends_every_thread(server: RendezvousServer) -> None:
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    other = RendezvousServer(SECRET)
    idle = socket.create_connection((other.address, other.port))
    client = client_of(other)
    client.put("x", 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "never", 60.0)
        wait_until(lambda: len(set(threading.enumerate()) - before) >= 4)
        other.close()
        with contextlib.suppress(ChannelError):
            assert waiting.result() is None
    assert set(threading.enumerate()) <= before
    idle.close()
    client.close()


def test_a_client_connects_again_after_its_connection_broke(server: RendezvousServer) -> None:
    client = client_of(server)
    client.put("x", 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "never", 60.0)
        wait_until(lambda: len(server._connections) == 1 and bool(next(iter(server._connections)).waits))
        client._connected(soon())._shut()
        with pytest.raises(ChannelError, match="closed the connection"):
            waiting.result()
    assert client.get("x") == 1
    client.close()


def test_a_connection_has_many_requests_under_way_at_a_time(server: RendezvousServer) -> None:
    client = client_of(server)
    client.put("here", 0)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(client.get, f"key/{number}", LIMIT_S) for number in range(8)]
        assert client.get("here") == 0  # while all of them wait
        for number in reversed(range(8)):
            client.put(f"key/{number}", number)
        assert [one.result() for one in waiting] == list(range(8))
    assert len(server._connections) == 1
    client.close()


def test_an_answer_that_comes_late_is_not_taken_for_the_next_one(server: RendezvousServer) -> None:
    client = client_of(server)
    client.put("x", 1)
    late = {"op": "get", "keys": ["late"], "timeout_ms": 60_000}
    with pytest.raises(ChannelError, match="did not answer in time"):
        client._exchange(late, soon(0.5))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, "next", LIMIT_S)
        wait_until(lambda: len(next(iter(server._connections)).waits) == 2)
        client.put("late", "too late")
        client.put("next", "in time")
        assert waiting.result() == "in time"
    client.close()


def test_a_watch_tells_of_a_rank_that_is_gone_and_of_the_launchers_end() -> None:
    server = RendezvousServer(SECRET)
    told: list[Exception] = []
    clients = [client_of(server) for _ in range(3)]
    for client in clients[:2]:
        client.watch("never", 60.0, told.append)
    cancel = clients[2].watch("never", 60.0, told.append)
    cancel()
    server.gone(1, "rank 1 was killed")
    wait_until(lambda: len(told) == 2)
    assert all(isinstance(one, RankGone) and one.rank == 1 for one in told)
    server.lead(1, [])
    told.clear()
    clients[0].watch("never", 60.0, told.append)
    assert clients[1].watch("is/there", 0.0, told.append) is not None
    server.close()
    wait_until(lambda: len(told) == 1)
    # Reset: if the server had not read the last request yet.
    assert isinstance(told[0], ChannelError) and re.search("closed the connection|reset by peer", str(told[0]))
    for client in clients:
        client.close()


def test_a_server_that_is_something_else_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" + b" " * 100)
                connection.recv(100)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(answer)
            with pytest.raises(ChannelError, match="does not speak Horovod's protocol"):
                Rendezvous("127.0.0.1", port, SECRET).put("x", 1, 0.5)
