# SPDX-License-Identifier: Apache-2.0
"""What horovod.run and ranks of other machines exchange, and that no rank can hold its caller up."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.extent import SLACK_S

from horovod.launcher.function.exchange import _PURPOSE, Exchange, ask_for_task, bring_answer
from horovod.world.channel import Channel, ChannelError, authenticate_client

SECRET = b"x" * 32
BIG = bytes(range(256)) * (1 << 18)  # 64 MiB: more than the sockets hold


held: list[Channel] = []  # ranks that stay until the exchange has been closed


@pytest.fixture
def exchange(tmp_path: Path) -> Iterator[Exchange]:
    (tmp_path / "task").write_bytes(BIG)
    made = Exchange(SECRET, "127.0.0.1", str(tmp_path / "task"), [str(tmp_path / f"answer-{rank}") for rank in (0, 1)])
    yield made
    closing = threading.Thread(target=made.close, daemon=True)
    closing.start()
    closing.join(10.0 + SLACK_S)
    was_alive = closing.is_alive()
    while held:
        held.pop().close()
    assert not was_alive, "close waits for a rank"


def asking(exchange: Exchange, **request: object) -> Channel:
    connection = socket.create_connection(("127.0.0.1", exchange.port))
    channel = authenticate_client(connection, SECRET, _PURPOSE, time.monotonic() + 10.0, "the exchange")
    channel.send(request)
    return channel


def test_tasks_and_answers_of_any_size_arrive_whole(exchange: Exchange, tmp_path: Path) -> None:
    assert ask_for_task("127.0.0.1", exchange.port, SECRET) == BIG
    bring_answer("127.0.0.1", exchange.port, SECRET, 1, BIG)
    bring_answer("127.0.0.1", exchange.port, SECRET, 0, b"")
    assert ((tmp_path / "answer-1").read_bytes(), (tmp_path / "answer-0").read_bytes()) == (BIG, b"")


def test_a_rank_that_reads_nothing_does_not_hold_the_end_up(exchange: Exchange) -> None:
    channel = asking(exchange, op="task")
    held.append(channel)
    assert channel.connection.recv(8) == struct.pack(">Q", len(BIG))  # it is being served


def test_a_part_of_an_answer_is_none(exchange: Exchange, tmp_path: Path) -> None:
    channel = asking(exchange, op="answer", rank=1)
    channel.connection.sendall(struct.pack(">Q", 100) + b"x" * 99)
    channel.connection.shutdown(socket.SHUT_WR)
    assert channel.connection.recv(1) == b""
    assert (tmp_path / "answer-1").read_bytes() == b""


@pytest.mark.parametrize("request_", [{"op": "answer", "rank": 2}, {"op": "answer", "rank": "1"}, {"op": "else"}, {}])
def test_another_request_gets_no_answer(exchange: Exchange, request_: dict[str, object]) -> None:
    assert asking(exchange, **request_).connection.recv(1) == b""


def test_without_the_secret_there_is_nothing(exchange: Exchange) -> None:
    with pytest.raises(ChannelError):
        ask_for_task("127.0.0.1", exchange.port, b"y" * 32)
