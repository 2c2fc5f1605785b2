# SPDX-License-Identifier: Apache-2.0
"""One agent as the launcher sees it: orders to it, events from it, and when it was last heard."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import Any

from horovod.launcher.hosts import RankIdentity
from horovod.launcher.lines import LineReader, line
from horovod.launcher.placement import Placement

__all__ = ["AgentLink"]


class AgentLink:
    """Owns the agent's process and pipes. Nothing blocks except `end`; one thread."""

    def __init__(self, host: str, ranks: list[RankIdentity], placement: Placement, environment: dict[str, str]) -> None:
        """Starts the agent on `host`, which will hold `ranks`. Raises OSError if it cannot be started."""
        self.host = host
        self.ranks = ranks
        self.done = False  # it has finished its work, or it has died
        self.suspended = False  # it has stopped its ranks by order
        self.heard_s = time.monotonic()
        self.directory = ""  # for temporary files of its ranks
        self._placement = placement
        self._process = placement.start_agent(host, environment)
        self._lines = LineReader("event")
        self._unsent = bytearray()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._events = self._process.stdin, self._process.stdout
        os.set_blocking(self._orders.fileno(), False)

    @property
    def pid(self) -> int:
        """The process on this machine: the agent itself, or what carries its pipes to another host."""
        return self._process.pid

    @property
    def exit_code(self) -> int:
        """Negative for a signal; only after `end`."""
        return self._process.returncode

    @property
    def events(self) -> int:
        """The descriptor that becomes readable when `read` has something to return."""
        return self._events.fileno()

    @property
    def orders(self) -> int:
        """The descriptor that becomes writable when `flush` can go on."""
        return self._orders.fileno()

    def order(self, name: str, **fields: Any) -> bool:
        """Sends an order. Returns False if a part of it is left for `flush`."""
        self._unsent += line(order=name, **fields)
        return self.flush()

    def flush(self) -> bool:
        """Sends what is left of earlier orders; True if nothing is left."""
        while self._unsent:
            try:
                del self._unsent[: os.write(self.orders, self._unsent)]
            except BlockingIOError:
                return False
            except BrokenPipeError:  # an agent that is gone shows at its events' end
                self._unsent.clear()
        return True

    def read(self) -> list[dict[str, Any]]:
        """Returns the events that have arrived; sets `done` when the stream ends.

        Raises LineError for a line that is not an event.
        """
        data = os.read(self.events, 1 << 16)
        self.heard_s = time.monotonic()
        self.done = self.done or not data
        return self._lines.feed(data) if data else []

    def end(self, grace_s: float) -> None:
        """Ends the agent, once. An agent that is not done is killed: it may hang, or be stopped."""
        if self._process.returncode is not None:
            return
        if not self.done:
            self._process.kill()  # before its orders end, which to it would mean that this process was killed
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        try:
            self._process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._events.close()

    def clean_up(self) -> None:
        """Removes what a killed agent has left; after its last rank has ended."""
        self._placement.clean_up(self.host, self.directory)
