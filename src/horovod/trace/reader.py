# SPDX-License-Identifier: Apache-2.0
"""The events of a timeline's file, one after the other: files may have gigabytes, and end in the middle of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from horovod.core.wording import on_one_line

__all__ = ["NotATimelineError", "Reader"]

_LINE_BYTES = 1 << 20  # a file with longer lines is not ours
_REPORT_BYTES = 64 << 20


class NotATimelineError(ValueError):
    """The file is not a timeline of Horovod, or cannot be read."""


class Reader:
    """One file. `torn`: lines that hold no event, once all are read. `report` is told the share that is read."""

    def __init__(self, path: str, report: Callable[[float], None] = lambda _: None) -> None:
        """Raises NotATimelineError."""
        self.path = path
        self.torn = 0
        self.is_closed = False  # its array has an end: no writer was killed while it wrote
        self._report = report
        try:
            self._bytes = os.path.getsize(path)
            with open(path, "rb") as file:
                first = [file.readline(_LINE_BYTES) for _ in range(2)]
        except OSError as error:
            raise NotATimelineError(f"{on_one_line(path)}: {error.strerror}") from None
        if self._bytes == 0:
            raise NotATimelineError(
                f"{on_one_line(path)} is empty: no rank has written an event\n"
                "hint: a rank writes its first event when it has called hvd.init()"
            )
        if first[0].strip() != b"[" or not first[1].startswith(b'{"name": "horovod"'):
            raise NotATimelineError(
                f"{on_one_line(path)} is not a timeline of Horovod\n"
                "hint: horovodrun --timeline-filename FILE writes one"
            )

    def ranks(self) -> list[int]:
        """The ranks that have written into the file."""
        found = set()
        with open(self.path, "rb") as file:
            for line in file:
                if b'"process_name"' in line:
                    event = _parsed(line)
                    if event is not None:
                        found.add(int(event.get("pid", 0)))
        return sorted(found)

    def events(self) -> Iterator[dict[str, Any]]:
        """All events in the order of the file: each rank's are in the order of time, those of several are mixed."""
        self.torn, self.is_closed = 0, False
        read = reported = 0
        with open(self.path, "rb") as file:
            for line in file:
                read += len(line)
                if read - reported >= _REPORT_BYTES:
                    reported = read
                    self._report(read / max(self._bytes, 1))
                text = line.strip()
                self.is_closed = text == b"]"
                if text in (b"[", b"]", b""):
                    continue
                event = _parsed(line)
                if event is None:
                    self.torn += 1
                else:
                    yield event


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line.strip().rstrip(b","))
    except ValueError:  # of a writer that was killed
        return None
    is_event = isinstance(event, dict) and isinstance(event.get("name"), str) and isinstance(event.get("ph"), str)
    is_placed = is_event and isinstance(event.get("pid"), int) and isinstance(event.get("ts", 0), (int, float))
    return event if is_placed else None
