# SPDX-License-Identifier: Apache-2.0
"""Sockets that a forked child must not hold: it would hide the end of its parent from the other ranks."""

from __future__ import annotations

import os
import socket
import weakref

__all__ = ["close_in_forked_child"]

_private: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_forked_child(owned: socket.socket) -> None:
    """From now on a child that this process forks closes it first."""
    _private.add(owned)


def _close_private() -> None:
    for owned in list(_private):
        owned.close()


os.register_at_fork(after_in_child=_close_private)
