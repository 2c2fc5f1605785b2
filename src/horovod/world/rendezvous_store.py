# SPDX-License-Identifier: Apache-2.0
"""The state of the rendezvous: keys and values, who waits for which, the current generation, and which ranks are gone.

No thread, no clock, no socket: rendezvous_server.py feeds it with requests and carries its answers.

Keys are text, values anything JSON can say. The store outlives generations; keys that belong to one carry its number,
and those of its start (`world/<generation>/`) are forgotten two generations later.
The first failure of a generation is recorded at `failure/<generation>` by compare-and-set, so that all ranks name the
same cause.

In an elastic job the launcher decides which generation there is and who is in it (`lead`), and speaks with the workers
(`say`, `hear`). Ranks also say how they do (`status`; statuses.py).
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from horovod.world.statuses import Statuses

__all__ = ["MAX_KEYS", "WorkerListener", "Reply", "Store", "Wait"]

MAX_KEYS = 1 << 18
MAX_WAIT_S = 3600.0

Reply = Callable[[dict[str, Any]], None]
# Hears a worker's number and its word. Must not block.
WorkerListener = Callable[[int, Any], None]
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclasses.dataclass(eq=False)
class Wait:
    """A client waits until all `keys` are there. `reply` is called once, unless the wait is cancelled.

    `any_of`: one of the keys is enough.
    `is_for_words`: a worker waits for the launcher's word instead, whatever happens to ranks.
    """

    keys: list[str]
    missing: set[str]
    deadline_s: float
    reply: Reply
    over: bool = False
    any_of: bool = False
    is_for_words: bool = False

    def cancel(self) -> None:
        self.over = True


@dataclasses.dataclass
class _Worker:
    """The words between the launcher of an elastic job and a worker. Each arrives once, in order.

    A worker's connection may break at any time, and then it asks again: for the words after the last one that it has,
    or with the number of a word that may have arrived already. Numbers begin with 1.
    """

    heard: int = 0  # the number of its last word
    told: int = 0  # the number of the last word for it
    words: dict[int, Any] = dataclasses.field(default_factory=dict)  # by number: those that it may not have got yet
    got: int = 0  # the number of the last word that it has
    wait: Wait | None = None  # for more

    def tell(self, word: Any) -> None:
        self.told += 1
        self.words[self.told] = word
        if self.wait is not None and not self.wait.over:
            self.wait.over = True
            self.wait.reply({"words": self.after(self.got)})

    def after(self, number: int) -> list[Any]:
        """The words behind the one of that number, which it has got with all before."""
        self.words = {own: word for own, word in self.words.items() if own > number}
        return list(self.words.values())


def _locked(
    method: Callable[Concatenate[Store, _Arguments], _Result],
) -> Callable[Concatenate[Store, _Arguments], _Result]:
    @functools.wraps(method)
    def call(self: Store, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with self._lock:
            return method(self, *args, **kwargs)

    return call


class Store:
    """All methods may be called from any thread. Times are those of any one clock, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: dict[str, Any] = {}
        self._waits_for: dict[str, list[Wait]] = {}
        self._deadlines: list[tuple[float, int, Wait]] = []
        self._numbers = itertools.count()
        self._generation = 0
        self._entered: dict[int, tuple[str, Any]] = {}  # by rank: the process in the current generation, and who it is
        self._places: list[dict[str, Any]] = []  # by rank: what the launcher says of its place
        self._abandoned = False  # a rank could not start in the current generation: no other rank joins it any more
        self._gone: dict[int, str] = {}  # by rank, the first one first: how it ended
        self._worker_listener: WorkerListener | None = None  # in an elastic job
        self._workers: dict[int, _Worker] = {}
        self._statuses = Statuses()

    # what the launcher does

    @_locked
    def entered(self) -> list[int]:
        """The ranks that have entered the newest generation so far, in order."""
        return sorted(self._entered)

    @_locked
    def failure(self, before: int = 0) -> dict[str, Any] | None:
        """The recorded cause of the newest generation that a rank has entered, or of one `before`, if there is one."""
        record = self._values.get(f"failure/{self._generation - before}")
        return record if isinstance(record, dict) else None

    @_locked
    def rejoined(self, size: int) -> dict[str, Any] | None:
        """The recorded cause of the generation before, if it is a rank that left it and has begun a new one alone."""
        record = self.failure(before=1)
        if record is None or record.get("code") != "RANK_LEFT" or len(self._entered) == size:
            return None
        return record if record.get("rank") in self.entered() else None

    @_locked
    def record_failure(self, rank: int, text: str) -> None:
        """The launcher's own word about the newest generation, unless a rank was faster."""
        self.compare_and_set(f"failure/{self._generation}", {"rank": rank, "code": "RANK_LOST", "text": text})

    @_locked
    def put(self, key: str, value: Any) -> None:
        self._values[key] = value
        for wait in self._waits_for.pop(key, ()):
            wait.missing.discard(key)
            if wait.any_of or not wait.missing:
                self._finish(wait)

    @_locked
    def get(self, key: str) -> Any:
        """The value, or None; does not wait."""
        return self._values.get(key)

    @_locked
    def compare_and_set(self, key: str, value: Any) -> Any:
        """Stores `value` if the key is new; returns the value that stands then."""
        if key not in self._values:
            self.put(key, value)
        return self._values[key]

    @_locked
    def gone(self, rank: int, text: str) -> None:
        """A rank has ended or stopped.

        All who wait for a key are told so instead; every start that needs all ranks waits for one. If several ranks are
        gone, the first one is named.
        """
        self._gone.setdefault(rank, text)
        for _, _, wait in self._deadlines:
            if not wait.is_for_words:
                self._finish(wait)
        self._deadlines = [one for one in self._deadlines if not one[2].over]
        heapq.heapify(self._deadlines)
        self._waits_for.clear()

    @_locked
    def assign(self, places: list[dict[str, Any]]) -> None:
        """Sets the place that a rank is told when it enters from now on.

        Without this, the rank uses its environment.
        """
        self._places = places

    @_locked
    def listen(self, listener: WorkerListener) -> None:
        """This is an elastic job: `listener` hears what its workers say."""
        self._worker_listener = listener

    @_locked
    def lead(self, generation: int, places: list[dict[str, Any]]) -> None:
        """The launcher has made a generation: no rank is gone from it, and requests for any other one are refused."""
        self._places, self._gone = places, {}
        self._begin(generation)
        self._values.pop(f"failure/{generation - 2}", None)
        # Those that were cancelled: a start waits for a key that never comes, until it is over (start_watch.py).
        self._waits_for = {
            key: left for key, waits in self._waits_for.items() if (left := [wait for wait in waits if not wait.over])
        }

    @_locked
    def tell(self, worker: int, word: Any) -> None:
        """A word for a worker, which it gets when it next asks."""
        self._worker(worker).tell(word)

    @_locked
    def forget_worker(self, worker: int) -> None:
        """It has ended."""
        self._workers.pop(worker, None)

    @_locked
    def expire(self, now_s: float) -> float | None:
        """Answers the waits whose time is up; returns when the next one's is."""
        while self._deadlines and (self._deadlines[0][2].over or self._deadlines[0][0] <= now_s):
            self._finish(heapq.heappop(self._deadlines)[2])
        return self._deadlines[0][0] if self._deadlines else None

    # what ranks ask

    @_locked
    def ask(self, request: Any, now_s: float, reply: Reply) -> Wait | None:
        """Answers now, or returns the wait that will.

        Never raises for what an authenticated peer may send: the answer says what is wrong with it.
        """
        match request:
            case {"op": "put" | "compare_and_set", "key": str(), "value": _} if len(self._values) >= MAX_KEYS:
                reply({"error": f"the rendezvous holds {MAX_KEYS} keys already"})
            case {"op": "put", "key": str(key), "value": value}:
                self.put(key, value)
                reply({})
            case {"op": "compare_and_set", "key": str(key), "value": value}:
                reply({"value": self.compare_and_set(key, value)})
            case {"op": "enter", "rank": int(rank), "process": str(process)}:
                reply(self._enter(rank, process, request.get("who"), request.get("generation")))
            case {"op": "say", "worker": int(worker), "number": int(number), "word": word} if self._worker_listener:
                if number > self._worker(worker).heard:
                    self._worker(worker).heard = number
                    self._worker_listener(worker, word)
                reply({})
            case {"op": "hear", "worker": int(worker), "after": int(after), "timeout_ms": int(timeout_ms)}:
                return self._hear(worker, after, now_s, timeout_ms, reply)
            case {"op": "entered", "generation": int(generation)}:
                reply({"ranks": self.entered() if generation == self._generation else []})
            case {"op": "abandon", "generation": int(generation), "rank": int(rank), "process": str(process)}:
                # Not the word of a second process of that rank, which has no place in it.
                self._abandoned |= generation == self._generation and self._process_of(rank) == process
                reply({})
            case {"op": "started"}:
                reply({})
            case {"op": "status", "generation": int(number), "rank": int(rank), "size": int(size), "status": dict()}:
                reply(self._statuses.put(number, rank, size, request["status"], now_s))
            case {"op": "statuses", "first": int(first)}:
                reply({"view": self._statuses.view(first, now_s)})
            case {"op": "stacks"}:
                reply({"number": self._statuses.ask_stacks(now_s)})
            case {"op": "get", "keys": list(keys), "timeout_ms": int(timeout_ms)}:
                wanted = [key for key in keys if isinstance(key, str)]
                any_of = request.get("any") is True
                return self._get(wanted, any_of, now_s, _seconds(timeout_ms), reply)
            case _:
                reply({"error": "the rendezvous does not know this request"})
        return None

    def _enter(self, rank: int, process: str, who: Any, led: Any) -> dict[str, Any]:
        """The generation that a process which calls init belongs to, and its place there. `led`: the one it was told.

        If the process is already in the current generation, it starts the next one. Two processes with the same rank
        get the same generation, and the start then detects the duplicate.
        """
        if not isinstance(led, int):
            if self._abandoned or self._process_of(rank) == process:
                self._begin(self._generation + 1)
            self._gone.pop(rank, None)  # it has come again
        elif led != self._generation:
            return {"error": f"generation {led} is over; this is generation {self._generation}"}
        first, other = self._entered.setdefault(rank, (process, who))
        entry: dict[str, Any] = {"generation": self._generation}
        if 0 <= rank < len(self._places):
            entry["place"] = self._places[rank]
        if first != process:
            entry["other"] = other
        return {"entry": entry}

    def _begin(self, generation: int) -> None:
        self._generation, self._entered, self._abandoned = generation, {}, False
        old = f"world/{generation - 2}/"  # a rank that is late is in the one before this
        self._values = {key: value for key, value in self._values.items() if not key.startswith(old)}

    def _process_of(self, rank: int) -> str | None:
        """The process that has entered the current generation as this rank."""
        return self._entered.get(rank, (None, None))[0]

    def _worker(self, number: int) -> _Worker:
        return self._workers.setdefault(number, _Worker())

    def _hear(self, number: int, after: int, now_s: float, timeout_ms: int, reply: Reply) -> Wait | None:
        worker = self._worker(number)
        words = worker.after(after)
        if words or timeout_ms <= 0:
            reply({"words": words})
            return None
        worker.got, worker.wait = after, Wait([], set(), now_s + _seconds(timeout_ms), reply, is_for_words=True)
        return self._pushed(worker.wait)

    def _pushed(self, wait: Wait) -> Wait:
        heapq.heappush(self._deadlines, (wait.deadline_s, next(self._numbers), wait))
        return wait

    def _get(self, keys: list[str], any_of: bool, now_s: float, timeout_s: float, reply: Reply) -> Wait | None:
        missing = {key for key in keys if key not in self._values}
        wait = Wait(keys, missing, now_s + timeout_s, reply, any_of=any_of)
        is_there = not missing or (any_of and len(missing) < len(set(keys)))
        if is_there or self._gone or timeout_s <= 0:
            self._finish(wait)
            return None
        for key in missing:
            self._waits_for.setdefault(key, []).append(wait)
        return self._pushed(wait)

    def _finish(self, wait: Wait) -> None:
        if wait.over:
            return
        wait.over = True
        if wait.is_for_words:
            wait.reply({"words": []})
            return
        values = {key: self._values[key] for key in wait.keys if key in self._values}
        answer: dict[str, Any] = {"values": values}
        if wait.missing and self._gone:
            rank, text = next(iter(self._gone.items()))
            answer["gone"] = {"rank": rank, "text": text}
        wait.reply(answer)
        for key in wait.missing:  # it was answered without them
            waiting = self._waits_for.get(key)
            if waiting is not None and wait in waiting:
                waiting.remove(wait)


def _seconds(timeout_ms: int) -> float:
    """An integer of JSON has no limit, unlike the float that the clock takes."""
    return min(max(timeout_ms, 0), MAX_WAIT_S * 1000) / 1000
