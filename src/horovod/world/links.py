# SPDX-License-Identifier: Apache-2.0
"""The sockets between ranks: made and authenticated here, then handed to the native core.

`LocalLeader` and `attach` connect the ranks of one host and prove that they share memory; `Mesh` connects ranks by TCP,
those that are to be linked and no others: the leaders in init, what carries data later (data_links.py).
"""

from __future__ import annotations

import dataclasses
import enum
import hmac
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from horovod.core.exceptions import NOT_REACHED
from horovod.core.temporary_files import memory_file
from horovod.world.channel import Channel, ChannelError, Listener, UnreachableError, authenticate_client
from horovod.world.forks import close_in_forked_child
from horovod.world.network import at_port, connected, listening

__all__ = [
    "DATA_LINKS",
    "LEADER_LINKS",
    "Guard",
    "Link",
    "LocalLeader",
    "Mesh",
    "Purpose",
    "Wanted",
    "attach",
    "hear",
    "tell",
]

DATA_LINKS_PER_PAIR = 2
_LOCAL = "local link"
_MESH = "link"
_TOKEN_BYTES = 32


# Of an UnreachableError.
HINT = (
    f"\n{NOT_REACHED} between the two hosts may refuse or drop connections: let the hosts of a job connect to each "
    "other at any port. Each rank listens at a free port of its system (sysctl net.ipv4.ip_local_port_range). If "
    "several networks connect the hosts, --network-interface (HOROVOD_GLOO_IFACE) chooses one"
)

# Told of each connection that this rank is about to wait on, so that another thread can end the wait.
Guard = Callable[[socket.socket], None]


class Purpose(enum.IntEnum):
    """hvd_purpose of horovod.h."""

    LOCAL = 0
    CONTROL = 1
    DATA = 2
    BEAT = 3
    OPENER = 4


# The links with one peer, as (purpose, index): those for data, and those between two hosts' leaders.
DATA_LINKS = [(Purpose.DATA, index) for index in range(DATA_LINKS_PER_PAIR)]
LEADER_LINKS = [(Purpose.CONTROL, 0), (Purpose.BEAT, 0)]
Wanted = dict[int, list[tuple[Purpose, int]]]  # by peer


@dataclasses.dataclass(frozen=True)
class Link:
    peer: int  # world rank at the other end
    purpose: Purpose
    socket: socket.socket  # blocking, authenticated, nothing read ahead
    index: int = 0  # among the data links with this peer; of an opener: how many a pair has


def tell(link: Link, message: Any, deadline: float) -> None:
    """Sends a JSON message over a link that the native core does not have yet. Raises ChannelError."""
    channel = Channel(link.socket, f"rank {link.peer}")
    try:
        channel.send(message, deadline)
    finally:
        channel.detach()


def hear(link: Link, deadline: float) -> Any:
    """The next message of the other end. Raises ChannelError."""
    channel = Channel(link.socket, f"rank {link.peer}")
    try:
        return channel.receive(deadline)
    finally:
        channel.detach()


class _Links:
    """The accepted links, filled by the listener's threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._links: dict[tuple[int, int, int], Link] = {}

    def add(self, link: Link) -> None:
        with self._changed:
            # The newer one stands: a rank that repeats a link has given up its first attempt.
            old = self._links.get((link.peer, link.purpose, link.index))
            if old is not None:
                old.socket.close()
            self._links[link.peer, link.purpose, link.index] = link
            self._changed.notify_all()

    def take(self, count: int, deadline: float) -> list[Link]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._links) >= count, max(0.0, deadline - time.monotonic())):
                raise ChannelError(f"{len(self._links)} of {count} connections from other ranks came in time")
            taken, self._links = [link for _, link in sorted(self._links.items())], {}
        return taken

    def close(self) -> None:
        with self._changed:
            for link in self._links.values():
                link.socket.close()
            self._links.clear()


class LocalLeader:
    """The lowest rank of a host: listens on an abstract unix socket of random name, so that no file is left behind."""

    def __init__(self, rank: int, size: int, generation: int, secret: bytes) -> None:
        self._rank = rank
        self._size = size
        self.name = f"horovod-{os.urandom(16).hex()}"
        self._generation = generation
        self._links = _Links()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind("\0" + self.name)
        listening.listen(1024)
        self._listener = Listener(listening, secret, _LOCAL, self._serve)

    def take(self, followers: Sequence[int], deadline: float) -> list[Link]:
        """The links to the followers, whose `attach` has returned or is about to."""
        taken = self._links.take(len(followers), deadline)
        strangers = sorted({link.peer for link in taken} - set(followers))
        if strangers:
            for link in taken:
                link.socket.close()
            raise ChannelError(f"rank {strangers[0]} has attached to rank {self._rank}, but is on another host")
        return taken

    def attached(self) -> list[Link]:
        """The links that exist now, of any peer."""
        return self._links.take(0, time.monotonic())

    def close(self) -> None:
        self._listener.close()
        self._links.close()

    def _serve(self, channel: Channel) -> None:
        deadline = time.monotonic() + 10.0
        hello = channel.receive(deadline)
        rank = _checked_hello(hello, self._generation, channel)
        if not self._rank < rank < self._size:
            raise ChannelError(f"{channel.peer} asks for a link as rank {rank}, which does not follow this one")
        token = os.urandom(_TOKEN_BYTES)
        try:
            memory = memory_file("horovod-attach")
        except OSError as error:
            raise ChannelError(f"rank {self._rank}: {error.strerror}") from error
        try:
            os.write(memory, token)
            socket.send_fds(channel.connection, [b"\0"], [memory])
        except OSError as error:
            raise ChannelError(f"rank {rank}: {error.strerror}") from error
        finally:
            os.close(memory)
        answer = channel.receive(deadline)
        if not isinstance(answer, dict) or not hmac.compare_digest(
            str(answer.get("token")).encode(errors="replace"), token.hex().encode()
        ):
            raise ChannelError(f"rank {rank} does not see this process' memory")
        channel.send({"attached": True}, deadline)
        self._links.add(Link(rank, Purpose.LOCAL, channel.detach()))


def attach(name: str, leader: int, rank: int, generation: int, secret: bytes, deadline: float, guard: Guard) -> Link:
    """A follower's side: connects to its host's leader and maps a page of it. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        guard(connection)
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        connection.connect("\0" + name)
    except OSError as error:
        connection.close()
        raise ChannelError(f"the local socket of rank {leader} cannot be reached: {error.strerror or error}") from error
    channel = authenticate_client(connection, secret, _LOCAL, deadline, f"rank {leader}")
    try:
        channel.send({"rank": rank, "generation": generation}, deadline)
        _, descriptors, _, _ = socket.recv_fds(channel.connection, 1, 1)
        if not descriptors:
            raise ChannelError(f"rank {leader}'s memory could not be passed")
        try:
            with mmap.mmap(descriptors[0], _TOKEN_BYTES, prot=mmap.PROT_READ) as memory:
                token = bytes(memory)
        finally:
            os.close(descriptors[0])
        channel.send({"token": token.hex()}, deadline)
        channel.receive(deadline)
    except BaseException:
        channel.close()
        raise
    return Link(leader, Purpose.LOCAL, channel.detach())


class DataLinkTaker(Protocol):
    """The object that a mesh tells of data links that higher ranks open."""

    def expect(self, rank: int, index: int) -> None:
        """Before that rank is told that it has the link."""

    def take(self, link: Link) -> None:
        """Afterwards."""


class Mesh:
    """This rank's TCP port, and its links to the ranks that it is to be linked with: the higher rank connects."""

    def __init__(self, rank: int, generation: int, secret: bytes, address: str) -> None:
        """Listens from here on, so that the port is known; connections wait until `open`."""
        self.address = address
        self._rank = rank
        self._generation = generation
        self._secret = secret
        self._wanted: Wanted = {}
        self._data: DataLinkTaker | None = None
        self._waiting: list[socket.socket] = []  # of lower ranks, which learn by them that this one has ended
        self._connected: list[Link] = []
        self._accepted = _Links()
        self._listener: Listener | None = None
        self._listening = listening(address, backlog=1024)
        self.port: int = self._listening.getsockname()[1]
        close_in_forked_child(self._listening)

    def open(self, wanted: Wanted, data: DataLinkTaker | None = None) -> None:
        """Serves those of these ranks that are higher. Data links go to `data`, each on a separate thread."""
        self._wanted = wanted
        self._data = data
        self._listener = Listener(self._listening, self._secret, _MESH, self._serve)

    def connect(self, places: Sequence[tuple[str, int]], deadline: float, guard: Guard) -> None:
        """Makes all leader links to lower ranks. Blocks; raises ChannelError that names the rank and its address."""
        for peer in sorted(peer for peer in self._wanted if peer < self._rank):
            for purpose, index in self._wanted[peer]:
                if purpose != Purpose.DATA:
                    self._connected.append(self.link_with(peer, places[peer], purpose, index, deadline, guard))

    def take(self, deadline: float) -> list[Link]:
        """All leader links, once every rank's `connect` has returned."""
        higher = [kind for peer, kinds in self._wanted.items() if peer > self._rank for kind in kinds]
        count = sum(purpose != Purpose.DATA for purpose, _ in higher)
        links, self._connected = self._connected + self._accepted.take(count, deadline), []
        return sorted(links, key=lambda link: (link.peer, link.purpose, link.index))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listening.close()
        self._accepted.close()
        for link in self._connected:
            link.socket.close()
        self._connected = []
        while self._waiting:
            self._waiting.pop().close()

    def link_with(
        self, peer: int, place: tuple[str, int], purpose: Purpose, index: int, deadline: float, guard: Guard
    ) -> Link:
        """Connects to a lower rank. Raises ChannelError that names it and its address."""
        hello = {"purpose": int(purpose), "index": index}
        return Link(peer, purpose, self._greet(peer, place, hello, deadline, guard), index)

    def wait_at(self, peer: int, place: tuple[str, int], deadline: float, guard: Guard) -> socket.socket:
        """An idle connection to a higher rank, which closes when that process ends. Errors as in `link_with`."""
        return self._greet(peer, place, {"waits": True}, deadline, guard)

    def _greet(
        self, peer: int, place: tuple[str, int], hello: dict[str, Any], deadline: float, guard: Guard
    ) -> socket.socket:
        where = f"rank {peer} at {at_port(*place)}"
        try:
            connection = connected(*place, max(0.01, deadline - time.monotonic()), guard)
        except (OSError, OverflowError) as error:  # overflow: a port that is none
            why = getattr(error, "strerror", None) or error
            raise UnreachableError(f"{where} cannot be reached: {why}") from error
        channel = authenticate_client(connection, self._secret, _MESH, deadline, where)
        try:
            channel.send({"rank": self._rank, "generation": self._generation, **hello}, deadline)
            channel.receive(deadline)
        except BaseException:
            channel.close()
            raise
        return channel.detach()

    def _serve(self, channel: Channel) -> None:
        deadline = time.monotonic() + 10.0
        hello = channel.receive(deadline)
        rank = _checked_hello(hello, self._generation, channel)
        if hello.get("waits") is True and rank < self._rank and DATA_LINKS[0] in self._wanted.get(rank, []):
            channel.send({"linked": False}, deadline)
            self._waiting.append(channel.detach())
            return
        kind = (hello.get("purpose"), hello.get("index"))
        if rank <= self._rank or kind not in self._wanted.get(rank, []):
            raise ChannelError(f"{channel.peer} asks for a link that this rank does not have")
        purpose, index = Purpose(kind[0]), int(kind[1])
        if purpose != Purpose.DATA or self._data is None:
            channel.send({"linked": True}, deadline)
            self._accepted.add(Link(rank, purpose, channel.detach(), index))
            return
        self._data.expect(rank, index)
        channel.send({"linked": True}, deadline)
        self._data.take(Link(rank, purpose, channel.detach(), index))


def _checked_hello(hello: Any, generation: int, channel: Channel) -> int:
    if not isinstance(hello, dict) or not isinstance(hello.get("rank"), int):
        raise ChannelError(f"{channel.peer} did not say which rank it is")
    if hello.get("generation") != generation:
        raise ChannelError(f"rank {hello['rank']} is in generation {hello.get('generation')}, this one in {generation}")
    return int(hello["rank"])
