# SPDX-License-Identifier: Apache-2.0
"""The messages between the launcher and its agents: JSON objects, one a line."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["GREETING", "LineError", "LineReader", "line"]

# An agent's first output. On another host, the user's shell may print something before it.
GREETING = b"\nhorovod's agent\n"

# No event is longer: the longest are 64 KiB of output, escaped.
MAX_LINE_BYTES = 16 << 20


class LineError(ValueError):
    """A line is not a message: the other side is another program, or its memory is damaged."""


class LineReader:
    """Cuts a stream into messages; holds at most one unfinished line.

    `kind`: the field that every message of this stream has, a text. `limit_bytes`: of a line; None: as long as memory
    lasts.
    """

    def __init__(self, kind: str, limit_bytes: int | None = MAX_LINE_BYTES) -> None:
        self._kind = kind
        self._limit_bytes = limit_bytes
        self._unparsed = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now. Raises LineError, after which the stream is worth nothing."""
        *lines, self._unparsed = (self._unparsed + data).split(b"\n")
        if self._limit_bytes is not None and len(self._unparsed) > self._limit_bytes:
            raise LineError(f"a line of more than {self._limit_bytes} bytes")
        return [self._message(text) for text in lines]

    def _message(self, text: bytes) -> dict[str, Any]:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LineError(f"a line that is not JSON: {error}") from error
        if not isinstance(message, dict) or not isinstance(message.get(self._kind), str):
            raise LineError(f"a line without `{self._kind}`")
        return message


def line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"
