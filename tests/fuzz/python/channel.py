# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: the handshake of both sides, and the frames behind it. The first byte chooses the side and whether the
peer then falls silent, goes away for good, or only stops sending; the rest is what the peer sends. Both nonces are zero
here, so that the corpus can hold proofs that are right."""

import os
import socket
import time
from unittest import mock

from horovod.world import channel

SECRET = b"s" * 32
MEASURED = {
    "horovod/world/channel.py": [
        "Channel",
        "Unpacker",
        "authenticate_client",
        "authenticate_server",
        "_length",
        "_parse",
        "_proof",
        "_receive_exactly",
        "_remaining",
        "_send_all",
        "_shut",
        "pack",
    ]
}
LONGEST = 60_000  # what a socket takes before anybody reads


def run(data: bytes) -> None:
    choice, sent = data[:1] or b"\0", data[1:]
    _unpack(sent)
    ours, theirs = socket.socketpair()
    with ours, theirs, mock.patch.object(os, "urandom", bytes):
        if sent:
            ours.sendall(sent)
        silent, gone = bool(choice[0] & 4), bool(choice[0] & 8)
        if gone:
            theirs.send(b"so that its end is a reset")
            ours.close()
        elif not silent:
            ours.shutdown(socket.SHUT_WR)
        # A peer that is silent costs its deadline; one that hangs up costs none.
        deadline = time.monotonic() + (0.0005 if silent else 10)
        try:
            _converse(choice[0] & 3, theirs, deadline)
        except channel.ChannelError:
            return


def _unpack(sent: bytes) -> None:
    """However the bytes are cut, the same messages come."""
    found = []
    for size in (1 + len(sent) // 3, max(1, len(sent))):
        unpacker, messages = channel.Unpacker("peer"), []
        try:
            for start in range(0, len(sent), size):
                messages += unpacker.feed(sent[start : start + size])
        except channel.ChannelError:
            continue  # the messages before it may have come with it, or before it
        found.append(messages)
    assert len(found) < 2 or repr(found[0]) == repr(found[1])


def _converse(side: int, connection: socket.socket, deadline: float) -> None:
    if side == 0:
        peer = channel.authenticate_server(connection, SECRET, "fuzz", deadline, "peer")
    elif side == 1:
        peer = channel.authenticate_client(connection, SECRET, "fuzz", deadline, "peer")
    else:
        peer = channel.Channel(connection, "peer")
    assert peer.fileno() == peer.connection.fileno() >= 0
    try:
        while True:
            message = peer.receive(deadline)
            peer.send(message, deadline)
            if side == 3:
                _send_what_is_too_much(peer, message)
    finally:
        (peer.detach if side % 2 else peer.close)()
        peer.close()
        try:
            peer.receive(0.0)
            raise AssertionError("a closed channel gave a message")
        except channel.ChannelError:
            pass


def _send_what_is_too_much(peer: channel.Channel, message: object) -> None:
    for _ in range(2000):
        message = [message]
    for too_much in (message, "x" * channel.MAX_FRAME_BYTES):
        try:
            peer.send(too_much)
            raise AssertionError("a message without end was sent")
        except channel.MessageError:
            pass
