# SPDX-License-Identifier: Apache-2.0
"""One agent as the launcher sees it: orders to it, events from it, and when it was last heard."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from horovod.launcher.host.lines import GREETING, LineReader, line
from horovod.launcher.options.hosts import RankIdentity
from horovod.launcher.placement import Placement, PlacementOptions

__all__ = ["AgentLink"]

_READ_BYTES = 1 << 16
# Of what is kept of a shell's words before the agent's, and of the last words on stderr.
_KEPT_BYTES = 1 << 13


class AgentLink:
    """Owns the agent's process and pipes. Nothing blocks except `end` and `why_it_ended`; one thread."""

    def __init__(
        self,
        host: str,
        ranks: list[RankIdentity],
        placement: Placement,
        environment: Mapping[str, str],
        options: PlacementOptions,
    ) -> None:
        """Starts the agent on `host`, which will hold `ranks`. Raises OSError if it cannot be started."""
        self.host = host
        self.ranks = ranks
        self.remote = placement.remote
        self.way = placement.name  # for people
        self.started = False  # it has been ordered to start its ranks
        self.done = False  # it has finished its work, or nothing more can come from it
        self.finished = False  # it has said so itself
        self.suspended = False  # it has stopped its ranks by order
        self.heard_s = time.monotonic()
        self.directory = ""  # for temporary files of its ranks
        self._placement = placement
        self._options = options
        self._process = placement.start_agent(host, environment, options)
        self._lines = LineReader("event")
        self._before_greeting: bytes | None = b""  # None: it has greeted
        self._unsent = bytearray()
        self._said = b""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._events = self._process.stdin, self._process.stdout
        os.set_blocking(self._orders.fileno(), False)
        if self._process.stderr is not None:
            os.set_blocking(self._process.stderr.fileno(), False)

    @property
    def pid(self) -> int:
        """The process on this machine: the agent itself, or the one that has its pipes to another host."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Until `end`."""
        return self._process.returncode is None

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

    @property
    def words(self) -> int | None:
        """The descriptor of stderr until `clean_up`, if it does not go to the launcher's own."""
        stderr = self._process.stderr
        return None if stderr is None or stderr.closed else stderr.fileno()

    def order(self, name: str, **fields: Any) -> bool:
        """Sends an order. Returns False if a part of it is left for `flush`."""
        if not self.is_open:
            return True
        self._unsent += line(order=name, **fields)
        return self.flush()

    def flush(self) -> bool:
        """Sends what is left of earlier orders; True if nothing is left."""
        while self._unsent:
            try:
                del self._unsent[: os.write(self.orders, self._unsent)]
            except BlockingIOError:
                return False
            except ConnectionError:  # an agent that is gone shows at its events' end
                self._unsent.clear()
        return True

    def read(self) -> list[dict[str, Any]]:
        """Returns the events that have arrived; sets `done` when the stream ends.

        Raises LineError for a line that is not an event.
        """
        try:
            data = os.read(self.events, _READ_BYTES)
        except BlockingIOError:  # of a connection, which is not only this descriptor's
            return []
        except ConnectionError:
            data = b""
        self.heard_s = time.monotonic()
        self.done = self.done or not data
        if self._before_greeting is not None:
            _, greeting, rest = (self._before_greeting + data).partition(GREETING)
            if not greeting:
                self._before_greeting = (self._before_greeting + data)[-_KEPT_BYTES:]
                return []
            self._before_greeting, data = None, rest
        return self._lines.feed(data) if data else []

    def read_words(self) -> bytes | None:
        """The agent's output on stderr; empty at its end, None if there is nothing now."""
        assert self.words is not None
        try:
            data = os.read(self.words, _READ_BYTES)
        except BlockingIOError:
            return None
        self._said = (self._said + data)[-_KEPT_BYTES:]
        return data

    def why_it_ended(self, grace_s: float) -> tuple[str, str]:
        """Why it ended before it was ready, and a hint."""
        self.end(grace_s)
        while self.words is not None and self.read_words():
            pass
        return self._placement.explain(self.host, self._options, self.exit_code, self.said_first())

    def said_first(self) -> str:
        """The output from before the agent could speak: a shell's on stdout, and any program's on stderr."""
        return b"\n".join(filter(None, (self._before_greeting, self._said))).decode(errors="replace")

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
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._placement.clean_up(self.host, self.directory)
