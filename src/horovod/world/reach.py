# SPDX-License-Identifier: Apache-2.0
"""Finds out which of several addresses of one process lead to it: all are tried at a time, and it proves the secret."""

from __future__ import annotations

import time
from collections.abc import Iterable

from horovod.world.channel import Channel, authenticate_client
from horovod.world.network import at_port, attempts, ways_to
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

    def left_s() -> float:
        return deadline - time.monotonic()

    ways = [(address, *way) for address in addresses for way in ways_to(address, port)]
    for address, outcome in attempts(ways, left_s):
        try:
            if isinstance(outcome, OSError):
                raise outcome
            peer = f"what listens at {at_port(address, port)}"
            by_this = authenticate_client(outcome, secret, PURPOSE, time.monotonic() + _CONNECT_S, peer)
        except OSError as error:
            unreached[address] = error.strerror or str(error)
            continue
        if address in reached:
            by_this.close()
        reached.setdefault(address, by_this)
        deadline = min(deadline, time.monotonic() + _MORE_S)
    return reached, {address: why for address, why in unreached.items() if address not in reached}
