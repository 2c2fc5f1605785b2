# SPDX-License-Identifier: Apache-2.0
"""Rows of Spark by which task 0 brings the end of a job that it has supervised: a kind, a number and bytes.

("stdout" or "stderr", 0, bytes)   what the ranks printed, in order
("answer", rank, bytes)            a piece of a rank's answer
("failed", 0, bytes)               a pickled error, because of which there is no end
("end", exit code, bytes)          JSON: the hosts by rank, and how the job ended
"""

from __future__ import annotations

import codecs
import collections
import dataclasses
import itertools
import json
import pickle
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from horovod.launcher.function.answers import answer_in, results
from horovod.launcher.job.supervision import Conclusion

__all__ = ["Came", "Output", "Row", "rows_of_end", "rows_of_error"]

Row = tuple[str, int, bytes]

_PIECE_BYTES = 16 << 20  # a message of Spark Connect has 128 MiB at most


class Output:
    """Keeps the last bytes that the ranks have printed. `log` gets all of them as they come."""

    def __init__(self, most_bytes: int, log: Any) -> None:
        self._parts: collections.deque[tuple[str, bytes]] = collections.deque()
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lost = 0
        self._log = log
        self._lock = threading.Lock()

    def stream(self, name: str) -> Any:
        """An object with a method `write` for text."""
        return _Stream(self, name)

    def keep(self, stream: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        with self._lock:
            self._log.write(text)
            self._log.flush()
            self._parts.append((stream, data))
            self._bytes += len(data)
            while self._bytes > self._most_bytes and len(self._parts) > 1:
                gone = len(self._parts.popleft()[1])
                self._bytes -= gone
                self._lost += gone

    def rows(self) -> Iterator[Row]:
        if self._lost:
            text = f"horovod.spark: {self._lost} bytes of output came before this; the log of task 0 has them\n"
            yield "stderr", 0, text.encode()
        for stream, parts in itertools.groupby(self._parts, key=lambda part: part[0]):
            yield stream, 0, b"".join(data for _, data in parts)


@dataclasses.dataclass
class _Stream:
    output: Output
    name: str

    def write(self, text: str) -> None:
        self.output.keep(self.name, text)


def rows_of_end(answers: Iterable[bytes], code: int, conclusion: Conclusion, hosts: list[str]) -> Iterator[Row]:
    for rank, answer in enumerate(answers):
        for begin in range(0, len(answer), _PIECE_BYTES):
            yield "answer", rank, answer[begin : begin + _PIECE_BYTES]
    yield "end", code, json.dumps({"hosts": hosts, "conclusion": dataclasses.asdict(conclusion)}).encode()


def rows_of_error(error: Exception) -> Iterator[Row]:
    yield "failed", 0, pickle.dumps(error)


class Came:
    """Rows that have come to the driver."""

    def __init__(self, rows: Iterable[Row]) -> None:
        decoders = {name: codecs.getincrementaldecoder("utf-8")(errors="replace") for name in ("stdout", "stderr")}
        self.output: list[tuple[str, str]] = []
        self._answers: dict[int, list[bytes]] = {}
        self._error: Exception | None = None
        self._end: tuple[int, dict[str, Any]] | None = None
        for kind, number, data in rows:
            match kind:
                case "answer":
                    self._answers.setdefault(number, []).append(data)
                case "failed":
                    self._error = pickle.loads(data)
                case "end":
                    self._end = number, json.loads(data)
                case _:
                    self.output.append((kind, decoders[kind].decode(data)))

    def results(self, name: str, size: int) -> list[Any]:
        """The values in rank order. Raises the error that says why there are none."""
        if self._error is not None:
            raise self._error
        assert self._end is not None
        code, end = self._end
        answers = [answer_in(rank, b"".join(self._answers.get(rank, ()))) for rank in range(size)]
        return results(answers, code, Conclusion(**end["conclusion"]).text, name, end["hosts"], peers=False)
