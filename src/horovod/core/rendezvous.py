# SPDX-License-Identifier: Apache-2.0
"""A rank's side of the rendezvous: the key-value store through which the ranks of a job meet and agree."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from horovod.core.channel import AuthenticationError, Channel, ChannelError, ProtocolError, authenticate_client

__all__ = ["RankGone", "Rendezvous"]

PURPOSE = "rendezvous"
_ANSWER_TIMEOUT_S = 10.0
_RETRY_S = 5.0  # how long a refused or dropped connection is tried again


class RankGone(Exception):
    """What was waited for can never come: the launcher saw a rank of the job end or stop. `str()`: which, and how."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


class Rendezvous:
    """One connection to the server, made at the first use and again after it broke or after a fork.

    All methods may be called from any thread; a call waits for one that another thread has under way. They block for at
    most their time limit and raise ChannelError where the server cannot be reached or does not prove the secret.
    """

    def __init__(self, address: str, port: int, secret: bytes) -> None:
        self.address = address
        self.port = port
        self._secret = secret
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._owner = os.getpid()
        self._interrupted = False

    def put(self, key: str, value: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        self._ask({"op": "put", "key": key, "value": value}, timeout_s)

    def compare_and_set(self, key: str, value: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        """Stores a JSON value where the key is new. Returns the winner's value, which may be this one."""
        return self._ask({"op": "compare_and_set", "key": key, "value": value}, timeout_s, "value", object)

    def enter(self, rank: int, process: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> int:
        """The generation that this rank's init belongs to, whatever this process has seen before.

        `process` tells two processes of one rank apart.
        """
        request = {"op": "enter", "rank": rank, "process": process}
        generation: int = self._ask(request, timeout_s, "generation", int)
        return generation

    def abandon(self, generation: int, rank: int, process: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        """Says that this rank could not start in this generation: a rank that comes later joins the next one."""
        request = {"op": "abandon", "generation": generation, "rank": rank, "process": process}
        self._ask(request, timeout_s)

    def first_cause(self, generation: int, mine: dict[str, Any], timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        """Why the generation ended: `mine`, or what somebody recorded earlier. Keys: rank, code, text."""
        return self.compare_and_set(f"failure/{generation}", mine, timeout_s)

    def get(self, key: str, timeout_s: float = 0.0) -> Any:
        """The value, waited for at the server for up to `timeout_s`; None when it did not come."""
        return self.get_many([key], timeout_s).get(key)

    def get_many(self, keys: Iterable[str], timeout_s: float = 0.0) -> dict[str, Any]:
        """Waits until all keys are there or the time is up; returns those that are.

        Raises RankGone where a key is missing and a rank is known to be gone.
        """
        request = {"op": "get", "keys": list(keys), "timeout_ms": max(0, int(timeout_s * 1000))}
        values: dict[str, Any] = self._ask(request, timeout_s + _ANSWER_TIMEOUT_S, "values", dict)
        return values

    def local_address(self) -> str:
        """This process' address on the interface that leads to the rendezvous."""
        with self._lock:
            address: str = self._connected(time.monotonic() + _ANSWER_TIMEOUT_S).connection.getsockname()[0]
        return address

    def close(self) -> None:
        with self._lock:
            self._drop()

    def interrupt(self) -> None:
        """Ends the call that another thread has under way, and all later ones, with ChannelError."""
        self._interrupted = True
        channel = self._channel
        if channel is not None:
            channel.close()

    def _ask(self, request: dict[str, Any], timeout_s: float, field: str | None = None, kind: type = object) -> Any:
        """The answer's `field`, which must be a `kind`; without a field, only that the server agreed."""
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise ChannelError(f"the rendezvous at {self._where()} is still busy with another request of this rank")
        try:
            channel = self._connected(deadline)
            if self._interrupted:
                raise ChannelError(f"the request to the rendezvous at {self._where()} was interrupted")
            channel.send(request, deadline)
            answer = channel.receive(deadline)
        except BaseException:
            self._drop()  # a late answer must not be taken for that of the next request
            raise
        finally:
            self._lock.release()
        if not isinstance(answer, dict) or "error" in answer:
            raise ChannelError(f"the rendezvous at {self._where()} refused a request: {answer}")
        match answer.get("gone"):
            case {"rank": int(rank), "text": str(text)}:
                raise RankGone(text, rank)
        if field is None:
            return None
        if not isinstance(answer.get(field), kind) or field not in answer:
            raise ChannelError(f"the rendezvous at {self._where()} gave no {field}: {answer}")
        return answer[field]

    def _connected(self, deadline: float) -> Channel:
        if self._owner != os.getpid() and self._channel is not None:
            self._channel.detach().close()  # the parent still uses this connection: close only our descriptor
            self._channel = None
        if self._channel is None:
            self._owner = os.getpid()
            self._channel = self._connect(deadline)
        return self._channel

    def _connect(self, deadline: float) -> Channel:
        give_up = min(deadline, time.monotonic() + _RETRY_S)
        pause = threading.Event()
        while True:
            try:
                connection = socket.create_connection(
                    (self.address, self.port), timeout=max(0.01, deadline - time.monotonic())
                )
                peer = f"the rendezvous at {self._where()}"
                return authenticate_client(connection, self._secret, PURPOSE, deadline, peer)
            except (AuthenticationError, ProtocolError):
                raise
            except OSError as error:
                if time.monotonic() >= give_up:
                    if isinstance(error, ChannelError):
                        raise
                    raise ChannelError(
                        f"the rendezvous at {self._where()} cannot be reached: {error.strerror or error}"
                    ) from error
            pause.wait(0.05)

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _where(self) -> str:
        return f"{self.address}:{self.port}"
