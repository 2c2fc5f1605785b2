# SPDX-License-Identifier: Apache-2.0
"""The place where the ranks of one job meet: a key-value store in the launcher, open only to holders of the job's
secret.

Keys are text, values anything JSON can say. The store outlives generations; keys that belong to one carry its number.
The first failure of a generation is recorded at `failure/<generation>` by compare-and-set, so that everybody names the
same cause.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from horovod.core.channel import Channel, Listener, MessageError
from horovod.core.rendezvous import PURPOSE

__all__ = ["RendezvousServer"]

MAX_WAIT_S = 3600
MAX_KEYS = 1 << 18
_LOOK_S = 1.0  # how often a wait looks whether its client is still there
_GENERATION_DIGITS = 18


class RendezvousServer:
    """Listens on `address` at a free port from construction to `close`. All methods may be called from any thread."""

    def __init__(self, secret: bytes, address: str = "127.0.0.1", *, handshake_timeout_s: float = 10.0) -> None:
        self._values: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._gone: dict[str, Any] | None = None
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, 0), family=family, backlog=1024)
        self.address: str = address
        self.port: int = listening.getsockname()[1]
        self._listener = Listener(listening, secret, PURPOSE, self._serve, handshake_timeout_s=handshake_timeout_s)

    @property
    def refused(self) -> int:
        """How many connections could not prove the secret."""
        return self._listener.refused

    def put(self, key: str, value: Any) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> Any:
        """The value, or None; does not wait."""
        with self._changed:
            return self._values.get(key)

    def compare_and_set(self, key: str, value: Any) -> Any:
        """Stores `value` where the key is new; returns the value that stands then."""
        with self._changed:
            if key not in self._values:
                self._values[key] = value
                self._changed.notify_all()
            return self._values[key]

    def failure(self) -> dict[str, Any] | None:
        """The recorded cause of the newest generation that any rank has entered, where there is one."""
        record = self.get(f"failure/{self._newest_generation()}")
        return record if isinstance(record, dict) else None

    def record_failure(self, rank: int, text: str) -> None:
        """The launcher's own word about the newest generation, where no rank has been faster."""
        self.compare_and_set(f"failure/{self._newest_generation()}", {"rank": rank, "code": "RANK_LOST", "text": text})

    def _newest_generation(self) -> int:
        with self._changed:
            parts = [key.split("/") for key in self._values if key.startswith(("world/", "failure/"))]
            numbers = [part[1] for part in parts if part[1].isdecimal() and len(part[1]) <= _GENERATION_DIGITS]
        return max((int(number) for number in numbers), default=0)

    def gone(self, rank: int, text: str) -> None:
        """A rank has ended or stopped: who waits for what is not there yet, as every start does that needs all ranks,
        is told so instead. The first one counts."""
        with self._changed:
            if self._gone is None:
                self._gone = {"rank": rank, "text": text}
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._listener.close()

    def _serve(self, channel: Channel) -> None:
        while True:
            request = channel.receive()
            answer = self._answer(request, channel)
            try:
                channel.send(answer, time.monotonic() + 60)
            except MessageError as error:
                channel.send({"error": str(error)}, time.monotonic() + 60)

    def _answer(self, request: Any, channel: Channel) -> dict[str, Any]:
        """Never raises for what an authenticated peer may send: the answer says what is wrong with it."""
        match request:
            case {"op": "put", "key": str(key), "value": value}:
                if self._full():
                    return {"error": f"the rendezvous holds {MAX_KEYS} keys already"}
                self.put(key, value)
                return {}
            case {"op": "compare_and_set", "key": str(key), "value": value}:
                if self._full():
                    return {"error": f"the rendezvous holds {MAX_KEYS} keys already"}
                return {"value": self.compare_and_set(key, value)}
            case {"op": "get", "keys": list(keys), "timeout_ms": int(timeout_ms)}:
                # An integer of JSON has no limit, unlike the float that the clock takes.
                return self._wait_for(keys, min(max(timeout_ms, 0), MAX_WAIT_S * 1000) / 1000, channel)
        return {"error": "the rendezvous does not know this request"}

    def _full(self) -> bool:
        with self._changed:
            return len(self._values) >= MAX_KEYS

    def _wait_for(self, keys: list[Any], timeout_s: float, channel: Channel) -> dict[str, Any]:
        wanted = {key for key in keys if isinstance(key, str)}
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (self._closing or self._gone is not None or wanted <= self._values.keys()):
                left_s = deadline - time.monotonic()
                if left_s <= 0 or channel.peer_has_closed():  # nobody waits for the answer any more
                    break
                self._changed.wait(min(left_s, _LOOK_S))
            found = {key: self._values[key] for key in wanted & self._values.keys()}
            if self._gone is None or len(found) == len(wanted):
                return {"values": found}
            return {"values": found, "gone": self._gone}
