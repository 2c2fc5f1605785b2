# SPDX-License-Identifier: Apache-2.0
"""A rank's side of the rendezvous: the key-value store through which the ranks of a job meet and agree."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from horovod.world.channel import (
    AuthenticationError,
    Channel,
    ChannelError,
    MessageError,
    ProtocolError,
    Unpacker,
    authenticate_client,
)
from horovod.world.network import LOOPBACK, at_port, connected, listening

__all__ = ["NoAnswerError", "RankGone", "Rendezvous"]

PURPOSE = "rendezvous"
_ANSWER_TIMEOUT_S = 10.0
_RETRY_S = 5.0  # how long a refused or dropped connection is tried again
_READ_BYTES = 1 << 16

# Takes an answer, or why there will be none. Runs on the connection's thread: it must not block, nor ask.
Taker = Callable[[Any], None]


class NoAnswerError(ChannelError):
    """The connection stands, as far as this side knows, but nothing has come in time."""


class RankGone(Exception):
    """The awaited key can never come: the launcher saw a rank of the job end or stop. `str()`: which, and how."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.rank = rank


class _Connection:
    """One connection for any number of requests at a time, and the thread that reads their answers.

    Each request has a number, which its answer repeats: an answer that comes late is not taken for another's.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # guards what follows
        self._sending = threading.Lock()
        self._takers: dict[int, Taker] = {}
        self._asked = 0
        self._ended: ChannelError | None = None
        self._thread = threading.Thread(target=self._read, name="horovod-rendezvous-answers", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            channel.close()
            raise

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def ask(self, request: dict[str, Any], deadline: float, take: Taker) -> int:
        """Sends the request; returns its number. Raises ChannelError, and then `take` is not called."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._asked += 1
            number = self._asked
            self._takers[number] = take
        try:
            with self._sending:
                self._channel.send({**request, "id": number}, deadline)
        except BaseException as error:
            self.forget(number)
            if not isinstance(error, MessageError):  # a part of it may have left
                self._shut()
            raise
        return number

    def forget(self, number: int) -> None:
        """Drops this answer: its caller does not wait any more."""
        with self._lock:
            self._takers.pop(number, None)

    def address(self) -> str:
        """This side's."""
        address: str = self._channel.connection.getsockname()[0]
        return address

    def close(self) -> None:
        self._shut()
        self._thread.join()
        self._channel.close()

    def leave_to_parent(self) -> None:
        """In a forked child, which does not have the thread: closes its descriptor alone."""
        self._channel.detach().close()

    def _shut(self) -> None:
        # The thread sleeps on the descriptor, which must not become another's before it has woken.
        with contextlib.suppress(OSError):
            self._channel.connection.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        peer = self._channel.peer
        unpacker = Unpacker(peer)
        descriptor = self._channel.fileno()
        # Not Channel.receive: a time limit of a socket is that of its senders too.
        readable = select.poll()
        readable.register(descriptor, select.POLLIN)
        try:
            while True:
                readable.poll()
                with contextlib.suppress(BlockingIOError):
                    data = os.read(descriptor, _READ_BYTES)
                    if not data:
                        raise ChannelError(f"{peer} closed the connection")
                    for answer in unpacker.feed(data):
                        self._deliver(answer)
        except ChannelError as error:
            self._end(error)
        except OSError as error:
            self._end(ChannelError(f"{peer}: {error.strerror or error}"))

    def _deliver(self, answer: Any) -> None:
        number = answer.pop("id", None) if isinstance(answer, dict) else None
        if not isinstance(number, int):
            raise ChannelError(f"{self._channel.peer} answered without saying what: {answer}")
        with self._lock:
            take = self._takers.pop(number, None)
        if take is not None:
            take(answer)

    def _end(self, error: ChannelError) -> None:
        with self._lock:
            self._ended = error
            takers, self._takers = list(self._takers.values()), {}
        for take in takers:
            take(error)


class Rendezvous:
    """One connection to the server, made at the first use and again after it broke or after a fork.

    All methods may be called from any thread, also while others wait in theirs. They block for at most their time limit
    and raise ChannelError if the server cannot be reached or does not prove the secret.
    """

    def __init__(self, address: str, port: int, secret: bytes, name: str = "the rendezvous") -> None:
        """`name`: what errors call it."""
        self.address = address
        self.port = port
        self._secret = secret
        self._name = name
        self._lock = threading.Lock()  # held while a connection is made
        self._connection: _Connection | None = None
        self._owner = os.getpid()

    def put(self, key: str, value: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        self._ask({"op": "put", "key": key, "value": value}, timeout_s)

    def compare_and_set(self, key: str, value: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        """Stores a JSON value where the key is new. Returns the winner's value, which may be this one."""
        return self._ask({"op": "compare_and_set", "key": key, "value": value}, timeout_s, "value", object)

    def enter(
        self,
        rank: int,
        process: str,
        who: Any = None,
        timeout_s: float = _ANSWER_TIMEOUT_S,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """The generation that this process' init belongs to, whatever it has seen before, and its place there.

        `process` tells two processes of one rank apart; `who` says in JSON which one this is. Keys of the answer:
        generation; place: the place that the launcher has assigned to the rank, if any; other: `who` of a process that
        has entered the generation as the same rank.

        `generation`: the one that this process has been told to enter, in an elastic job. It may be over.
        """
        request = {"op": "enter", "rank": rank, "process": process, "who": who}
        if generation is not None:
            request["generation"] = generation
        answer: dict[str, Any] = self._ask(request, timeout_s, "entry", dict)
        if not isinstance(answer.get("generation"), int):
            raise ChannelError(f"{self._where()} gave no generation: {answer}")
        return answer

    def entered(self, generation: int, timeout_s: float = _ANSWER_TIMEOUT_S) -> list[int]:
        """The ranks that have entered this generation so far, in order."""
        ranks: list[Any] = self._ask({"op": "entered", "generation": generation}, timeout_s, "ranks", list)
        return sorted(rank for rank in ranks if isinstance(rank, int))

    def abandon(
        self, generation: int, rank: int, process: str, why: str = "", timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> None:
        """Says that this rank could not start in this generation: a rank that comes later joins the next one."""
        request = {"op": "abandon", "generation": generation, "rank": rank, "process": process, "why": why}
        self._ask(request, timeout_s)

    def started(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        """Says that this rank's start is over: the other ranks' engines notice its end from now on."""
        self._ask({"op": "started"}, timeout_s)

    def tell_status(
        self, generation: int, rank: int, size: int, status: dict[str, Any], timeout_s: float = _ANSWER_TIMEOUT_S
    ) -> dict[str, Any]:
        """Says how this rank does. The answer is that of Statuses.put."""
        request = {"op": "status", "generation": generation, "rank": rank, "size": size, "status": status}
        answer = self._exchange(request, time.monotonic() + timeout_s)
        self._checked(answer, "next_s", float)
        return dict(answer)

    def statuses(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Returns the statuses of all ranks: Statuses.view, with all pages in one."""
        whole: dict[str, Any] = self._ask({"op": "statuses", "first": 0}, timeout_s, "view", dict)
        page = whole
        while "next" in page:
            page = self._ask({"op": "statuses", "first": page["next"]}, timeout_s, "view", dict)
            whole["ranks"].update(page["ranks"])
        return whole

    def ask_stacks(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> int:
        """Has the ranks add their stacks to their statuses, with the number that is returned."""
        number: int = self._ask({"op": "stacks"}, timeout_s, "number", int)
        return number

    def say(self, worker: int, number: int, word: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        """Says a word to the launcher of an elastic job. `number`: 1 for the worker's first one, and so on."""
        self._ask({"op": "say", "worker": worker, "number": number, "word": word}, timeout_s)

    def hear(self, worker: int, after: int, timeout_s: float) -> list[Any]:
        """The launcher's words for a worker, waited for. `after`: how many it has got. None came in time: []."""
        request = {"op": "hear", "worker": worker, "after": after, "timeout_ms": int(timeout_s * 1000)}
        words: list[Any] = self._ask(request, timeout_s + _ANSWER_TIMEOUT_S, "words", list)
        return words

    def first_cause(self, generation: int, mine: dict[str, Any], timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        """The cause of the generation's end: `mine`, or one that was recorded earlier. Keys: rank, code, text."""
        return self.compare_and_set(f"failure/{generation}", mine, timeout_s)

    def get(self, key: str, timeout_s: float = 0.0) -> Any:
        """The value, waited for at the server for up to `timeout_s`; None when it did not come."""
        return self.get_many([key], timeout_s).get(key)

    def get_many(self, keys: Iterable[str], timeout_s: float = 0.0, *, any_of: bool = False) -> dict[str, Any]:
        """Waits until all keys, or `any_of` them, are there or the time is up; returns those that are.

        Raises RankGone if a key is missing and a rank is known to be gone.
        """
        request = {**_get(keys, timeout_s), "any": any_of}
        values: dict[str, Any] = self._ask(request, timeout_s + _ANSWER_TIMEOUT_S, "values", dict)
        return values

    def watch(self, key: str, timeout_s: float, tell: Callable[[RankGone | ChannelError], None]) -> Callable[[], None]:
        """Calls `tell` once if a rank is gone before `key` is put, or if the connection ends.

        Not after `timeout_s`, nor after the function that is returned has been called. `tell` runs on the connection's
        thread: it must not block, nor use this object.
        """
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S

        def take(answer: Any) -> None:
            try:
                self._checked(answer, None, object)
            except (RankGone, ChannelError) as end:
                tell(end)

        connection = self._connected(deadline)
        number = connection.ask(_get([key], timeout_s), deadline, take)
        return lambda: connection.forget(number)

    def place(self) -> tuple[str, int, bytes]:
        """The server's address, its port, and the secret: all that a connection needs."""
        return self.address, self.port, self._secret

    def listener(self, on_one_host: bool) -> socket.socket:
        """A socket that listens for other ranks, at `local_address` if some are on other hosts. Raises OSError."""
        return listening(LOOPBACK if on_one_host else self.local_address())

    def local_address(self) -> str:
        """This process' address on the interface that leads to the rendezvous."""
        return self._connected(time.monotonic() + _ANSWER_TIMEOUT_S).address()

    def close(self) -> None:
        """Ends all calls that are under way, with ChannelError."""
        with self._lock:
            self._drop()

    def _ask(self, request: dict[str, Any], timeout_s: float, field: str | None = None, kind: type = object) -> Any:
        """The answer's `field`, which must be a `kind`; without a field, only that the server agreed."""
        return self._checked(self._exchange(request, time.monotonic() + timeout_s), field, kind)

    def _checked(self, answer: Any, field: str | None, kind: type) -> Any:
        if isinstance(answer, ChannelError):
            raise answer
        if not isinstance(answer, dict) or "error" in answer:
            raise ChannelError(f"{self._where()} refused a request: {answer}")
        match answer.get("gone"):
            case {"rank": int(rank), "text": str(text)}:
                raise RankGone(text, rank)
        if field is None:
            return None
        if not isinstance(answer.get(field), kind) or field not in answer:
            raise ChannelError(f"{self._where()} gave no {field}: {answer}")
        return answer[field]

    def _exchange(self, request: dict[str, Any], deadline: float) -> Any:
        """The answer, or the error that came instead."""
        answers: list[Any] = []
        answered = threading.Event()

        def take(answer: Any) -> None:
            answers.append(answer)
            answered.set()

        connection = self._connected(deadline)
        number = connection.ask(request, deadline, take)
        try:
            if not answered.wait(max(0.0, deadline - time.monotonic())):
                raise NoAnswerError(f"{self._where()} did not answer in time")
        finally:
            connection.forget(number)
        return answers[0]

    def _connected(self, deadline: float) -> _Connection:
        with self._lock:
            if self._connection is not None and self._owner != os.getpid():
                self._connection.leave_to_parent()
                self._connection = None
            if self._connection is not None and self._connection.ended:
                self._drop()
            if self._connection is None:
                self._owner = os.getpid()
                self._connection = _Connection(self._connect(deadline))
            return self._connection

    def _connect(self, deadline: float) -> Channel:
        give_up = min(deadline, time.monotonic() + _RETRY_S)
        pause = threading.Event()
        while True:
            try:
                connection = connected(self.address, self.port, max(0.01, deadline - time.monotonic()))
                peer = f"{self._where()}"
                return authenticate_client(connection, self._secret, PURPOSE, deadline, peer)
            except (AuthenticationError, ProtocolError):
                raise
            except OSError as error:
                if time.monotonic() >= give_up:
                    if isinstance(error, ChannelError):
                        raise
                    raise ChannelError(f"{self._where()} cannot be reached: {error.strerror or error}") from error
            pause.wait(0.05)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._owner == os.getpid():
            connection.close()

    def _where(self) -> str:
        return f"{self._name} at {at_port(self.address, self.port)}"


def _get(keys: Iterable[str], timeout_s: float) -> dict[str, Any]:
    return {"op": "get", "keys": list(keys), "timeout_ms": max(0, int(timeout_s * 1000))}
