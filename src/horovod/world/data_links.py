# SPDX-License-Identifier: Apache-2.0
"""Opens this rank's data links when the native core first uses them, and authenticates them, which only Python can.

The native core asks for a rank over a socket pair (horovod.h, HVD_LINK_OPENER), when a collective has data for that
rank. This rank connects to lower ranks. A higher rank connects to this one, when it uses the link itself. If that takes
a while, this rank opens an idle connection to the higher rank's port, which closes if that rank ends. One thread sleeps
on the socket pair. The port is closed when all possible links are open.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence

from horovod.world.channel import UnreachableError
from horovod.world.forks import close_in_forked_child
from horovod.world.links import DATA_LINKS, HINT, Link, Mesh, Purpose

__all__ = ["DataLinkOpener"]

_RANK = struct.Struct("=i")
_MAX_TEXT_BYTES = 2000
_PATIENCE_S = 0.2  # most higher ranks come at once


class DataLinkOpener:
    """Owns the mesh, and `native`, the end for the native core, until `close`; sockets, until they are handed over."""

    def __init__(
        self, rank: int, mesh: Mesh, places: Sequence[tuple[str, int]], timeout_s: float, unreached: set[int]
    ) -> None:
        """`unreached` gets the ranks that this one cannot connect to."""
        self._rank = rank
        self._unreached = unreached
        self._mesh = mesh
        self._places = places
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._expected: set[int] = set()  # with which nothing is open yet
        self._came: dict[int, dict[int, Link]] = {}  # from higher ranks: links by index
        self._coming: dict[int, set[int]] = {}  # by higher rank: the links, by index, that it has or is being given
        self._asked: dict[int, socket.socket | None] = {}  # higher ranks that are waited for, and where at them
        self._connecting: socket.socket | None = None
        self._closing = False
        self.native, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        close_in_forked_child(self.native)
        close_in_forked_child(self._ours)
        self._thread = threading.Thread(target=self._serve, name="horovod-data-links", daemon=True)

    def address(self) -> str:
        """Of this rank on the network that data takes."""
        return self._places[self._rank][0]

    def addresses_of_others(self) -> set[str]:
        """Of the hosts of the other ranks."""
        return {place[0] for place in self._places} - {self.address()}

    def start(self, peers: Iterable[int]) -> None:
        """`peers`: with which this rank may ever have data links."""
        self._expected = set(peers)
        self._thread.start()

    def link(self) -> Link:
        """The end of the socket pair that the native core gets."""
        return Link(self._rank, Purpose.OPENER, self.native, len(DATA_LINKS))

    def expect(self, rank: int, index: int) -> None:
        """A higher rank is about to be told that it has this link. On a thread of the mesh."""
        with self._lock:
            self._coming.setdefault(rank, set()).add(index)

    def take(self, link: Link) -> None:
        """A link that a higher rank has opened. On a thread of the mesh."""
        with self._lock:
            links = self._came.setdefault(link.peer, {})
            old = links.pop(link.index, None)  # the newer one stands: the rank has given up its first attempt
            links[link.index] = link
        if old is not None:
            old.socket.close()
        self._hand_over_if_whole(link.peer)

    def close(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._closing = True
            self._ours.shutdown(socket.SHUT_RDWR)
            if self._connecting is not None:
                self._connecting.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        self._end()

    def _serve(self) -> None:
        # The native core closes its end when it stops.
        with contextlib.suppress(OSError):
            while self._serve_one():
                pass
        self._end()

    def _serve_one(self) -> bool:
        """Whatever comes next. False: the native core has stopped."""
        with self._lock:
            places = {at.fileno(): peer for peer, at in self._asked.items() if at is not None}
            unwatched = [peer for peer, at in self._asked.items() if at is None]
        wakes = select.poll()
        for descriptor in (self._ours.fileno(), *places):
            wakes.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in wakes.poll(_PATIENCE_S * 1000 if unwatched else None)]
        if not ready:
            for peer in unwatched:
                self._wait_at(peer)
        for descriptor in ready:
            if descriptor in places:
                self._wait_again(places[descriptor])
        if self._ours.fileno() not in ready:
            return True
        request = self._ours.recv(_RANK.size)
        if len(request) < _RANK.size:
            return False
        (peer,) = _RANK.unpack(request)
        if peer < self._rank:
            self._connect(peer)
        else:
            with self._lock:
                self._asked[peer] = None
            self._hand_over_if_whole(peer)
        return True

    def _wait_at(self, peer: int) -> None:
        """Connects to the peer's port, to notice if the peer ends before it has connected."""
        deadline = time.monotonic() + self._timeout_s
        try:
            at = self._mesh.wait_at(peer, self._places[peer], deadline, self._guard)
        except OSError as error:
            self._give_up(peer, error)
            return
        with self._lock:
            if peer in self._asked:
                self._asked[peer] = at
                return
        at.close()

    def _wait_again(self, peer: int) -> None:
        """The connection has ended. If that rank has failed it has told us, and the native core may know already."""
        with self._lock:
            at = self._asked.get(peer)
            if at is not None:
                self._asked[peer] = None
        if at is not None:
            at.close()

    def _give_up(self, peer: int, why: OSError) -> None:
        with self._lock:
            # All links are on their way: that rank may have closed its port since.
            is_coming = len(self._coming.get(peer, ())) == len(DATA_LINKS)
            if is_coming or peer not in self._asked:
                return
            del self._asked[peer]
        self._refuse(peer, why)

    def _connect(self, peer: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        place = self._places[peer]
        made: list[Link] = []
        try:
            for purpose, index in DATA_LINKS:
                made.append(self._mesh.link_with(peer, place, purpose, index, deadline, self._guard))
        except OSError as error:
            for link in made:
                link.socket.close()
            self._refuse(peer, error)
            return
        self._hand_over(made)

    def _guard(self, connection: socket.socket) -> None:
        with self._lock:
            if self._closing:
                raise OSError("this rank is shutting down")
            self._connecting = connection

    def _refuse(self, peer: int, why: OSError) -> None:
        text = f"rank {self._rank} at {self._mesh.address} could not open a data link with rank {peer}: {why}"
        if isinstance(why, UnreachableError):
            text += HINT
            with self._lock:
                if not self._closing:
                    self._unreached.add(peer)
        self._ours.send(_RANK.pack(peer) + text.encode()[:_MAX_TEXT_BYTES])

    def _hand_over_if_whole(self, peer: int) -> None:
        with self._lock:
            if peer not in self._asked or len(self._came.get(peer, {})) < len(DATA_LINKS):
                return
            at = self._asked.pop(peer)
            links = self._came.pop(peer)
        if at is not None:
            with contextlib.suppress(OSError):
                at.shutdown(socket.SHUT_RDWR)  # wakes the thread that may sleep on it
            at.close()
        self._hand_over([links[index] for _, index in DATA_LINKS])

    def _hand_over(self, links: list[Link]) -> None:
        peer = links[0].peer
        with self._lock:
            self._expected.discard(peer)
            last = not self._expected
        if last:
            self._mesh.close()  # first: a rank that has its last link listens nowhere
        try:
            socket.send_fds(self._ours, [_RANK.pack(peer)], [link.socket.fileno() for link in links])
        except OSError as error:
            with contextlib.suppress(OSError):  # the native core has stopped
                self._refuse(peer, error)
        finally:
            for link in links:
                link.socket.close()

    def _end(self) -> None:
        self._mesh.close()
        with self._lock:
            came, self._came = list(self._came.values()), {}
            asked, self._asked = list(self._asked.values()), {}
        for links in came:
            for link in links.values():
                link.socket.close()
        for at in asked:
            if at is not None:
                at.close()
        self._ours.close()
