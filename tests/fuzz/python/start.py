# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: what a rank takes from authenticated ranks while it starts. The first byte chooses: the hello and the
answer of a rank that asks for a link (in frames), or the records that ranks publish (a JSON list)."""

import json
import os
import socket
import struct
import time
from typing import Any
from unittest import mock

from horovod.core import bootstrap, links, topology
from horovod.core.channel import Channel, ChannelError
from horovod.core.exceptions import StartError

MEASURED = {
    "horovod/core/links.py": ["LocalLeader._serve", "Mesh._serve", "_checked_hello", "_Links"],
    "horovod/core/bootstrap.py": ["_check_record", "_check_equal"],
    "horovod/core/topology.py": ["hosts_of", "ranks_text"],
}
LONGEST = 8192
RANK, SIZE, GENERATION = 0, 4, 7


def run(data: bytes) -> None:
    choice, rest = data[:1] or b"\0", data[1:]
    if choice[0] % 3 == 2:
        _records(rest)
        return
    owner: Any = object.__new__(links.LocalLeader if choice[0] % 3 == 0 else links.Mesh)
    owner._rank, owner._size, owner._generation = RANK, SIZE, GENERATION
    owner._wanted = {peer: [*links.DATA_LINKS, *links.LEADER_LINKS] for peer in range(1, SIZE)}
    owner._links = owner._accepted = links._Links()
    ours, theirs = socket.socketpair()
    with ours, mock.patch.object(os, "urandom", bytes):
        for _ in range(1 + choice[0] // 128):  # a rank that repeats a link
            ours.sendall(rest)
        ours.shutdown(socket.SHUT_WR)
        channel = Channel(theirs, "peer")
        try:
            owner._serve(channel)
            owner._serve(channel)
        except ChannelError:
            pass
        channel.close()
        try:
            taken = owner._links.take(1, time.monotonic())
        except ChannelError:
            taken = []
        for link in taken:
            assert RANK < link.peer < SIZE
            owner._links.add(link)
        owner._links.close()


def _records(data: bytes) -> None:
    try:
        published = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(published, list) or not published:
        return
    for fields in (bootstrap._OUTCOME, bootstrap._PLACE, bootstrap._RECORD):
        try:
            for rank, record in enumerate(published):
                bootstrap._check_record(rank, record, fields)
        except StartError:
            continue
        if fields is bootstrap._RECORD:
            _compare(dict(enumerate(published)))


def _compare(records: dict[int, dict[str, Any]]) -> None:
    try:
        bootstrap._check_equal(records)
        hosts = list(topology.hosts_of(records).values())
    except StartError:
        return
    assert sorted(rank for ranks in hosts for rank in ranks) == list(records)
    world = topology.Topology.of(hosts)
    assert world.hosts == sorted(hosts) and len(world.host_of_rank) == len(records)


def frame(message: object) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body
