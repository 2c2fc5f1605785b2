# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: what a rank takes from authenticated ranks while it starts. The first byte chooses: the hello and the
answer of a rank that asks for a link (in frames), or what ranks publish (JSON): a digest, or a list of hosts, or of
where ranks are; and rank 0's offer, which comes by MPI or in a file."""

import json
import os
import socket
import struct
import time
from typing import Any
from unittest import mock

from horovod.core.exceptions import StartError
from horovod.world import links, meeting
from horovod.world.channel import Channel, ChannelError
from horovod.world.launchers.offer import Offer

MEASURED = {
    "horovod/world/links.py": ["LocalLeader._serve", "Mesh._serve", "_checked_hello", "_Links"],
    "horovod/world/meeting.py": [
        *("check_record", "read_digest", "_pair", "_check_equal"),
        *("Meeting.judge", "Meeting._judged", "Meeting._all", "Meeting._give_places"),
    ],
    "horovod/world/agreed_sets.py": [
        *("agreed", "check_places", "_is_split", "_read", "_is_given", "_is_rank", "_is_list"),
    ],
    "horovod/world/topology.py": ["hosts_of", "places_of", "ranks_text"],
    "horovod/world/launchers/offer.py": ["Offer.parse"],
}
LONGEST = 8192
RANK, SIZE, GENERATION = 0, 4, 7


def run(data: bytes) -> None:
    choice, rest = data[:1] or b"\0", data[1:]
    if choice[0] % 3 == 2:
        _records(rest)
        return
    owner: Any = object.__new__(links.LocalLeader if choice[0] % 3 == 0 else links.Mesh)
    rank = RANK + bool(choice[0] & 64)
    owner._rank, owner._size, owner._generation = rank, SIZE, GENERATION
    owner._data, owner._waiting = _Taker() if choice[0] & 32 else None, []
    owner._wanted = {peer: [*links.DATA_LINKS, *links.LEADER_LINKS] for peer in range(SIZE) if peer != rank}
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
            assert rank < link.peer < SIZE
            owner._links.add(link)
        owner._links.close()
        for connection in owner._waiting:
            connection.close()


class _Taker:
    """Takes data links."""

    def expect(self, rank: int, index: int) -> None:
        assert RANK < rank < SIZE and index in (0, 1)

    def take(self, link: links.Link) -> None:
        assert link.purpose == links.Purpose.DATA
        link.socket.close()


class _Published:
    """Stands for the rendezvous: what the hosts have published is the input."""

    def __init__(self, records: list[Any], kind: str) -> None:
        self.values: dict[str, Any] = {f"world/{GENERATION}/{kind}/{n}": one for n, one in enumerate(records)}

    def get_many(self, keys: list[str], timeout_s: float) -> dict[str, Any]:
        return {key: self.values[key] for key in keys if key in self.values}

    def put(self, key: str, value: Any, timeout_s: float) -> None:
        self.values[key] = json.loads(json.dumps(value))


def _records(data: bytes) -> None:
    offer = Offer.parse(data)
    assert offer is None or Offer.parse(offer.packed()) == offer
    try:
        published = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(published, list) and published:
        size = sum(len(host["members"]) for host in published if _has_members(host))
        _judge(published, max(1, size))
        _place(published)
    else:
        _read(published, SIZE)


def _has_members(host: Any) -> bool:
    return isinstance(host, dict) and isinstance(host.get("members"), list)


def _judge(hosts: list[Any], size: int) -> None:
    identity = meeting.Identity(0, size, 0, 1, 0, len(hosts))
    published: Any = _Published(hosts, "host")
    digest = meeting.Meeting(published, identity, "a", GENERATION, 0.0, 1.0).judge()
    assert digest == published.values[f"world/{GENERATION}/digest"], "the judge said something else than it published"
    if digest["problem"] is None:
        _read(digest, size)
        assert sorted(rank for host in digest["hosts"] for rank in host) == list(range(size))


def _place(whereabouts: list[Any]) -> None:
    size = len(whereabouts)
    published: Any = _Published(whereabouts, "where")
    meeting.Meeting(published, meeting.Identity(0, size, 0, 1, 0, 1), "", GENERATION, 0.0, 1.0)._give_places()
    places = [published.values[f"world/{GENERATION}/place/{rank}"] for rank in range(size)]
    assert len({place["problem"] for place in places}) == 1
    if places[0]["problem"] is None:
        assert [place["rank"] for place in places] == list(range(size))


def _read(digest: Any, size: int) -> None:
    try:
        read = meeting.read_digest(digest, size)
    except StartError:
        return
    assert len(read.places) == len(read.topology.host_of_rank) == size
    assert all(isinstance(rank, int) for groups in read.process_sets for ranks in groups for rank in ranks)


def frame(message: object) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body
