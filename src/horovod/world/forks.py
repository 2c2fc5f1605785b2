# SPDX-License-Identifier: Apache-2.0
"""Sockets that a forked child must not hold: it would hide the end of its parent from the other ranks."""

from __future__ import annotations

import os
import select
import socket
import threading
import weakref
from typing import Any

__all__ = ["accept", "close_in_forked_child"]

_private: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_no_fork = threading.Lock()


def close_in_forked_child(owned: socket.socket) -> None:
    """From now on a child that this process forks closes it first."""
    _private.add(owned)


def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
    """Waits for a connection and returns it with its peer's address. A forked child closes it, if forked now as well.

    `listening` does not block. Raises OSError, also if the peer has gone meanwhile.
    """
    wakes = select.poll()
    wakes.register(listening, select.POLLIN)
    wakes.poll()
    with _no_fork:
        connection, address = listening.accept()
        close_in_forked_child(connection)
    return connection, address


def _close_private() -> None:
    _no_fork.release()
    for owned in list(_private):
        owned.close()


os.register_at_fork(before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_close_private)
