# SPDX-License-Identifier: Apache-2.0
"""Finds out which of several addresses of one process lead to it: all are tried at a time, and it proves the secret."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable

from horovod.world.channel import Channel, ChannelError, authenticate_client
from horovod.world.rendezvous import PURPOSE

__all__ = ["reach"]

_CONNECT_S = 5.0  # for an address from which nothing comes
_MORE_S = 0.5  # for the other addresses, once one works


def reach(
    addresses: Iterable[str], port: int, secret: bytes, timeout_s: float = _CONNECT_S
) -> tuple[dict[str, Channel], dict[str, str]]:
    """Connections to a rendezvous by the address at which they reached it; and why the other addresses do not work.

    Blocks for a few seconds at most. The caller owns the channels.
    """
    reached: dict[str, Channel] = {}
    unreached: dict[str, str] = {}
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for address in addresses:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            connection.setblocking(False)
            code = connection.connect_ex((address, port))
            if code in (0, errno.EINPROGRESS):
                selector.register(connection, selectors.EVENT_WRITE, address)
            else:
                connection.close()
                unreached[address] = os.strerror(code)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                selector.unregister(key.fileobj)
                try:
                    reached[key.data] = _authenticated(key.fileobj, key.data, port, secret)
                    deadline = min(deadline, time.monotonic() + _MORE_S)
                except OSError as error:
                    unreached[key.data] = error.strerror or str(error)
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
            unreached[key.data] = "no answer"
    return reached, unreached


def _authenticated(connection: socket.socket, address: str, port: int, secret: bytes) -> Channel:
    code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        connection.close()
        raise ChannelError(os.strerror(code))
    peer = f"what listens at {address}:{port}"
    return authenticate_client(connection, secret, PURPOSE, time.monotonic() + _CONNECT_S, peer)
