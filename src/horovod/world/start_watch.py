# SPDX-License-Identifier: Apache-2.0
"""Ends this rank's start when a rank that it waits for can no longer come.

In init a rank blocks on others in many places, in Python and in the native core, and where a peer is stopped no
connection ends. The launcher knows the state of every rank: it answers one request, on the connection that this rank
has to the rendezvous, when a rank is gone. Then, and when the launcher itself is gone, the connections that this rank
waits on are shut. Lives from the meeting to the end of the native start.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from horovod.world.channel import ChannelError
from horovod.world.rendezvous import RankGone, Rendezvous

__all__ = ["StartWatch"]

# A start that does not need the rank any more may yet succeed.
_PATIENCE_S = 0.2


class StartWatch:
    """`guard` takes the connections to shut, which keep their owners; `close` ends the watch."""

    def __init__(self, rendezvous: Rendezvous, generation: int, deadline: float) -> None:
        self._lock = threading.Lock()
        self._guarded: list[socket.socket] = []
        self._shutting = False
        self._closed = False
        self._end: RankGone | ChannelError | None = None
        self._told = threading.Event()
        self._timer: threading.Timer | None = None
        left_s = max(0.0, deadline - time.monotonic())
        self._cancel = rendezvous.watch(f"world/{generation}/never", left_s, self._take)

    def guard(self, connection: socket.socket) -> None:
        with self._lock:
            self._guarded.append(connection)
            late = self._shutting
        if late:
            _shut(connection)

    def end(self, timeout_s: float) -> RankGone | ChannelError | None:
        """Says which rank is gone, or that the launcher is gone, if that is known within the time."""
        self._told.wait(timeout_s)
        return self._end

    def close(self) -> None:
        self._cancel()
        with self._lock:
            self._closed = True
            self._guarded.clear()
            timer = self._timer
        if timer is not None:
            timer.cancel()
            timer.join()

    def _take(self, end: RankGone | ChannelError) -> None:
        with self._lock:
            if self._closed:
                return
            self._end = end
            self._timer = threading.Timer(_PATIENCE_S, self._shut_all)
            self._timer.daemon = True
            self._timer.start()
        self._told.set()

    def _shut_all(self) -> None:
        with self._lock:
            self._shutting = True
            for connection in self._guarded:
                _shut(connection)


def _shut(connection: socket.socket) -> None:
    # Closed meanwhile, or not connected yet: its owner finds out by itself.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
