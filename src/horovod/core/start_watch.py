# SPDX-License-Identifier: Apache-2.0
"""Ends this rank's start when a rank that it waits for can no longer come.

In init a rank blocks on others in many places, in Python and in the native core, and where a peer is stopped no
connection ends. The launcher knows the state of every rank: one thread asks it, over a connection of its own, and when
a rank is gone shuts the connections that this rank waits on. Lives from the meeting to the end of the native start.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from horovod.core.channel import ChannelError
from horovod.core.rendezvous import RankGone, Rendezvous

__all__ = ["StartWatch"]

# A start that does not need the rank any more may yet succeed.
_PATIENCE_S = 0.2


class StartWatch:
    """`guard` takes the connections to shut, which keep their owners; `close` ends the thread."""

    def __init__(self, address: str, port: int, secret: bytes, generation: int, deadline: float) -> None:
        self._rendezvous = Rendezvous(address, port, secret)
        self._key = f"world/{generation}/never"
        self._deadline = deadline
        self._lock = threading.Lock()
        self._guarded: list[socket.socket] = []
        self._gone: RankGone | None = None
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="horovod-start-watch", daemon=True)
        self._thread.start()

    def guard(self, connection: socket.socket) -> None:
        with self._lock:
            self._guarded.append(connection)
            late = self._gone is not None
        if late:
            _shut(connection)

    def gone(self, timeout_s: float) -> RankGone | None:
        """Which rank is gone, where the launcher says so within the time."""
        self._answered.wait(timeout_s)
        return self._gone

    def close(self) -> None:
        self._closed.set()
        self._rendezvous.interrupt()
        self._thread.join()
        self._rendezvous.close()

    def _watch(self) -> None:
        try:
            self._rendezvous.get_many([self._key], max(0.0, self._deadline - time.monotonic()))
        except RankGone as gone:
            with self._lock:
                self._gone = gone
            self._answered.set()
            if not self._closed.wait(_PATIENCE_S):
                with self._lock:
                    for connection in self._guarded:
                        _shut(connection)
        except ChannelError:
            self._answered.set()  # closed, or the launcher itself is gone, which ends this process in other ways


def _shut(connection: socket.socket) -> None:
    # Closed meanwhile, or not connected yet: its owner finds out by itself.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
