# SPDX-License-Identifier: Apache-2.0
"""The view of --top: the ranks, and below them the last lines of the job's output, in horovodrun's own terminal.

The view has the terminal's second screen. What the job prints meanwhile is kept, and printed when the view ends.
Without a terminal, or without rich, the view is printed now and then among the output.
"""

from __future__ import annotations

import collections
import io
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from horovod.core.wording import plain, tell
from horovod.launcher.watch import screen
from horovod.launcher.watch.facts import facts_of

__all__ = ["LiveView", "live_view"]

_DRAWN_S, _PRINTED_S = 2.0, 10.0
_LINES = 200
_HEAD = struct.Struct("=BI")  # of what is kept: the stream and the length

Statuses = Callable[[], dict[str, Any]]


class LiveView:
    """Prints the view among the output. `streams`: where the job's output goes, by name."""

    def __init__(self, name: str, statuses: Statuses, streams: dict[str, BinaryIO], interval_s: float) -> None:
        self.streams = streams
        self.name = name
        self.next_s = time.monotonic() + interval_s
        self._interval_s = interval_s
        self._statuses = statuses

    def act(self, now: float, warn: Callable[[str], None]) -> None:
        """Shows the view if it is time. `warn` prints a line of horovodrun's."""
        if now >= self.next_s:
            self.next_s = now + self._interval_s
            self.show(self._statuses(), warn)

    def show(self, view: dict[str, Any], warn: Callable[[str], None]) -> None:
        width, height = shutil.get_terminal_size((80, 40))
        for line in screen.plain(self.name, facts_of(view), width - len("horovodrun: "), height).splitlines():
            warn(line)

    def close(self) -> None:
        """Ends the view: from here on the streams are those that were given."""


class _Drawn(LiveView):
    """Draws with rich, on the second screen."""

    def __init__(self, name: str, statuses: Statuses, streams: dict[str, BinaryIO]) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(name, statuses, streams, _DRAWN_S)
        self._given = streams
        self._kept = _nameless_file()
        self._lines: collections.deque[str] = collections.deque([""], maxlen=_LINES)
        self.streams = {stream: cast(BinaryIO, _Keeper(self._keep, number)) for number, stream in enumerate(streams)}
        self._live = Live(console=Console(), auto_refresh=False, screen=True)
        self._live.start()

    def _keep(self, number: int, data: bytes) -> None:
        self._kept.write(_HEAD.pack(number, len(data)) + data)
        first, *more = data.decode(errors="replace").replace("\r", "\n").split("\n")
        self._lines[-1] += first
        self._lines.extend(more)

    def show(self, view: dict[str, Any], warn: Callable[[str], None]) -> None:
        from rich.console import Group
        from rich.text import Text

        width, height = shutil.get_terminal_size((80, 40))
        shown = screen.plain(self.name, facts_of(view), width, max(8, height // 2))
        room = height - shown.count("\n") - 3
        last = "\n".join(plain(line)[:width] for line in list(self._lines)[-room:]) if room > 0 else ""
        self._live.update(Group(Text(shown), Text("-" * width, style="dim"), Text(last)), refresh=True)

    def close(self) -> None:
        if not self._live.is_started:
            return
        self._live.stop()
        self.streams = self._given
        given = list(self._given.values())
        self._kept.seek(0)
        while head := self._kept.read(_HEAD.size):
            number, length = _HEAD.unpack(head)
            given[number].write(self._kept.read(length))
            given[number].flush()
        self._kept.close()


def _nameless_file() -> BinaryIO:
    descriptor, path = tempfile.mkstemp(prefix="hvd-output-")
    os.unlink(path)
    return os.fdopen(descriptor, "w+b")


class _Keeper(io.RawIOBase):
    """A stream whose bytes are kept."""

    def __init__(self, keep: Callable[[int, bytes], None], number: int) -> None:
        self._keep = keep
        self._number = number

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._keep(self._number, bytes(data))
        return len(data)


def live_view(name: str, statuses: Statuses, streams: dict[str, BinaryIO]) -> LiveView:
    """The view that this terminal can have."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        try:
            return _Drawn(name, statuses, streams)
        except ImportError:
            tell(
                "horovodrun: --top draws with rich, which is not installed; so the view comes among the output\n"
                "hint: pip install 'hvd[top]'"
            )
    return LiveView(name, statuses, streams, _PRINTED_S)
