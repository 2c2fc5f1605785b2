# SPDX-License-Identifier: Apache-2.0
"""A cable that delays and loses single packets, for Host.worsen (support/cluster.py): a process beside the switch.

    python bad_cable.py PORT HOST-SIDE

makes two TAP interfaces, one for the switch and one for a host, says "ready", and carries frames between them. Each
line on stdin, "SECONDS SHARE", sets the delay in each direction and the share of frames that are lost. The kernels at
both ends see an ordinary interface, without segmentation offload: what is lost is a packet as a real cable has it.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import random
import selectors
import struct
import sys
import time

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_BYTES = 1 << 16


def tap(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return descriptor


class Direction:
    """Frames on their way from one end to the other."""

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._target = target
        self._flying: collections.deque[tuple[float, bytes]] = collections.deque()

    def take(self, delay_s: float, lost: float) -> None:
        """What has come in at the source."""
        for _ in range(64):
            try:
                frame = os.read(self._source, _FRAME_BYTES)
            except BlockingIOError:
                return
            if random.random() >= lost:
                self._flying.append((time.monotonic() + delay_s, frame))

    def deliver(self) -> float | None:
        """What has arrived. Returns when the next frame does."""
        while self._flying and self._flying[0][0] <= time.monotonic():
            # If the interface is down, or has no room, the frame is lost, as on a real one.
            with contextlib.suppress(OSError):
                os.write(self._target, self._flying.popleft()[1])
        return self._flying[0][0] if self._flying else None


def main() -> None:
    ends = [tap(name) for name in sys.argv[1:3]]
    directions = {ends[0]: Direction(*ends), ends[1]: Direction(*reversed(ends))}
    print("ready", flush=True)
    delay_s, lost = 0.0, 0.0
    selector = selectors.DefaultSelector()
    for descriptor in (0, *ends):
        selector.register(descriptor, selectors.EVENT_READ)
    while True:
        arrivals = [at for at in (one.deliver() for one in directions.values()) if at is not None]
        left_s = max(0.0, min(arrivals) - time.monotonic()) if arrivals else None
        for key, _ in selector.select(left_s):
            if key.fd == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                delay_s, lost = map(float, line.split())
                print("set", flush=True)
            else:
                directions[key.fd].take(delay_s, lost)


if __name__ == "__main__":
    main()
