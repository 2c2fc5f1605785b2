# SPDX-License-Identifier: Apache-2.0
"""The ranks' output: line by line to the terminal with the rank in front, and unchanged into files if asked for.

A line without an end, such as a prompt, is shown after a moment. If another rank writes then, the line is broken.
Equal tracebacks of several ranks are shown once, with all these ranks in front.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from horovod.launcher.job.failure import Line
from horovod.launcher.job.tracebacks import HeldTracebacks, ranges
from horovod.world.files.places import make_folder
from horovod.world.files.whole import open_in_place

__all__ = ["OutputError", "Outputs", "Prefixer", "local_time", "prepare_directory"]

_TAIL_LINES = 20
_LINE_CHARACTERS = 1 << 16  # a line that grows beyond is broken, so that no rank can fill the memory
_UNENDED_S = 0.2  # until the beginning of a line is shown: most lines are whole by then
_LINE_END = re.compile(r"\r\n|\r|\n")
# Escape sequences that move the cursor to another line, which may be another rank's.
_TO_OTHER_LINES = re.compile(r"\x1b\[[0-9;]*[ABEFHJSTdfsu]|\x1b[78DM]")


class Prefixer:
    """Cuts one stream into lines, at newline or carriage return, and puts the prefix in front of each.

    A carriage return at the beginning of a line, with which progress bars begin, is left out.
    """

    def __init__(self, prefix: str, stamp: Callable[[], str] = str, *, beside_others: bool = False) -> None:
        """`stamp` gives what stands in front of the prefix at the moment when a line is complete.

        `beside_others`: the cursor stays in its line.
        """
        self._beside_others = beside_others
        self._rank_prefix = prefix
        self._stamp = stamp
        self._partial = ""
        self._shown = 0  # characters of it that are on the terminal
        self._is_open = False  # what is shown of it is the terminal's last line
        self._after_return = False
        self._is_broken = False  # after a carriage return, a newline has been written for another stream

    @property
    def _prefix(self) -> str:
        return self._stamp() + self._rank_prefix

    def feed(self, text: str) -> list[str]:
        """The lines that `text` completes, with their ends."""
        lines = []
        if self._after_return and text:
            self._after_return = False
            if text.startswith("\n"):
                lines += [] if self._is_broken else ["\n"]  # the second half of a \r\n whose line has been shown
                text = text[1:]
            self._is_broken = False
        whole = self._partial + text
        if self._beside_others:
            whole = _TO_OTHER_LINES.sub("", whole)
        end = 0
        is_empty = False
        for match in _LINE_END.finditer(whole):
            is_empty = end == match.start()
            if not is_empty or match[0] != "\r":
                lines.append(self._rest("\n" if is_empty else whole[end : match.end()]))
            end = match.end()
        self._partial = whole[end:]
        if text:
            self._after_return = whole.endswith("\r") and not is_empty
        while len(self._partial) > _LINE_CHARACTERS:
            lines.append(self._rest(self._partial[:_LINE_CHARACTERS] + "\n"))
            self._partial = self._partial[_LINE_CHARACTERS:]
        return lines

    def finish(self) -> list[str]:
        """Returns the text after the last newline, as a line."""
        partial, self._partial = self._partial, ""
        return [self._rest(f"{partial}\n")] if partial else []

    @property
    def is_line_start(self) -> bool:
        return not self._partial

    @property
    def has_unshown(self) -> bool:
        return len(self._partial) > self._shown

    def show(self) -> str:
        """The text after the last line end, as far as it is not shown yet."""
        begin = "" if self._is_open else self._prefix
        shown, self._shown, self._is_open = self._shown, len(self._partial), True
        return begin + self._partial[shown:]

    def interrupt(self) -> None:
        """Another stream has ended the terminal's last line, which was of this one."""
        self._is_open = False
        self._is_broken = self._after_return

    def _rest(self, line: str) -> str:
        """A whole line with the prefix, or what is missing of one that is shown in part."""
        shown, is_open, self._shown, self._is_open = self._shown, self._is_open, 0, False
        if shown and not is_open and not line[shown:].strip("\r\n"):
            return ""  # it was ended for another stream
        return ("" if is_open else self._prefix) + line[shown:]


def prepare_directory(directory: Path, size: int) -> None:
    """Makes the folders and empty files of a job's outputs. Raises OSError if they cannot be written."""
    width = len(str(size - 1))
    for rank in range(size):
        for stream in ("stdout", "stderr"):
            path = _path(directory, width, rank, stream)
            _opened(path).close()


def _opened(path: Path) -> FileIO:
    """An empty file, in a folder that is made for it. What an earlier run has written there keeps another name."""
    make_folder(path.parent)
    _keep_earlier(path)
    return open(path, "wb", buffering=0, opener=open_in_place)


def _keep_earlier(path: Path) -> None:
    """Gives what an earlier run has written another name: stdout.1, then stdout.2, and so on."""
    if path.is_file() and path.stat().st_size > 0:
        names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        path.rename(next(name for name in names if not name.exists()))


def local_time() -> str:
    """The prefix of a line with the local time, in ISO 8601, and a blank."""
    return datetime.datetime.now().astimezone().isoformat(timespec="milliseconds") + " "


def _path(directory: Path, width: int, rank: int, stream: str) -> Path:
    return directory / f"rank.{rank:0{width}d}" / stream


class OutputError(OSError):
    """The ranks' output cannot be shown any more, for another reason than a closed pipe."""


@contextlib.contextmanager
def _written_to(what: object) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write to {what}: {error.strerror or error}") from error


class Outputs:
    """All streams of a job.

    `directory`, prepared: also write D/rank.<rank, zero-padded>/stdout and stderr, byte for byte. If one of these files
    cannot be opened or written, all of them are given up, and `warn` is told once: the terminal shows the same.
    `timestamp`: lines begin with the local time, those of the files as well. `prefix`: then with rank and stream.
    `only_rank`: the terminal shows the output of this rank alone. `flag`: that has named `directory`.
    """

    def __init__(
        self,
        size: int,
        streams: Mapping[str, BinaryIO],
        directory: Path | None = None,
        timestamp: bool = False,
        warn: Callable[[str], None] = lambda _: None,
        *,
        prefix: bool = True,
        only_rank: int | None = None,
        flag: str = "--output-filename",
    ) -> None:
        self._has_prefix = prefix
        self._size = size
        self._flag = flag
        self._only_rank = only_rank
        self._streams = streams
        self._warn = warn
        self._directory = directory
        self._width = len(str(max(size, 1) - 1))
        self._stamp: Callable[[], str] = local_time if timestamp else str
        self._stampers: dict[tuple[int, str], Prefixer] | None = {} if timestamp else None  # of lines in files
        self._file: dict[tuple[int, str], FileIO] = {}
        self._prefixers: dict[tuple[int, str], Prefixer] = {}
        self._tails: dict[int, collections.deque[Line]] = {}
        self._unended: dict[int, str] = {}
        self._written_s: dict[int, float] = {}
        self._due: dict[tuple[int, str], float] = {}  # when the beginning of a line is shown
        # Streams that go to one terminal share its last line.
        self._terminals = {stream: _where(target) for stream, target in streams.items()}
        self._last: dict[object, tuple[int, str]] = {}  # by terminal, whose last line has no newline yet
        self._tracebacks = HeldTracebacks()
        self._ended: set[int] = set()  # ranks whose stderr has ended while a traceback was held
        self._forgotten: set[int] = set()  # ranks whose last lines are not needed any more
        for rank in range(size):
            self.add(rank)

    def add(self, rank: int) -> None:
        """Another process; its files are made, if they are not there."""
        self._tails[rank] = collections.deque(maxlen=_TAIL_LINES)
        self._unended[rank] = ""
        self._written_s[rank] = 0.0
        for stream in ("stdout", "stderr"):
            prefix = f"[{rank}]<{stream}>:" if self._has_prefix else ""
            beside_others = self._size > 1 and self._only_rank is None
            self._prefixers[rank, stream] = Prefixer(prefix, self._stamp, beside_others=beside_others)
            self._open_file(rank, stream)

    def write(self, rank: int, stream: str, text: str) -> None:
        """Blocks while the terminal does. Raises BrokenPipeError if the output has no reader any more."""
        if (rank, stream) in self._file:
            self._keep(self._file[rank, stream], self._as_kept(rank, stream, text).encode("utf-8", "surrogateescape"))
        if stream == "stderr":
            *lines, self._unended[rank] = (self._unended[rank] + text)[-_LINE_CHARACTERS:].split("\n")
            now = self._written_s[rank] = time.monotonic()
            self._tails[rank].extend(Line(line.rpartition("\r")[2].rstrip(), now) for line in lines if line.strip())
        prefixer = self._prefixers[rank, stream]
        if stream == "stderr":
            text = self._tracebacks.take(rank, text, prefixer.is_line_start, time.monotonic())
        self._show(rank, stream, "".join(prefixer.feed(text)))
        if prefixer.has_unshown:
            self._due[rank, stream] = time.monotonic() + _UNENDED_S
        else:
            self._due.pop((rank, stream), None)

    def next_time(self) -> float | None:
        """When `show_unended` has something to do."""
        held = self._tracebacks.next_time()
        return min([*self._due.values(), *([held] if held is not None else [])], default=None)

    def show_unended(self, now: float) -> None:
        """Shows beginnings of lines, and tracebacks, that have waited long enough. Raises as `write`."""
        self._show_tracebacks(now)
        for rank, stream in [one for one, due in self._due.items() if due <= now]:
            del self._due[rank, stream]
            self._show(rank, stream, self._prefixers[rank, stream].show())

    def end_line(self, stream: str) -> None:
        """Ends the last line of a terminal, before something else than a rank writes there. Raises as `write`."""
        if self._terminals[stream] == self._terminals["stderr"]:
            self._show_tracebacks()
        self._end_last_line(stream)

    def _end_last_line(self, stream: str) -> None:
        last = self._last.pop(self._terminals[stream], None)
        if last is None:
            return
        if last in self._prefixers:
            self._prefixers[last].interrupt()
        self._put(stream, "\n")

    def end(self, rank: int, stream: str) -> None:
        """Nothing more comes of this stream: shows what has no line end, and closes the file."""
        if stream == "stderr" and rank in self._tracebacks:
            self._ended.add(rank)
            return
        prefixer = self._prefixers.pop((rank, stream), None)
        if (rank, stream) in self._file:
            self._close_file(rank, stream)
        self._drop_forgotten(rank)
        self._due.pop((rank, stream), None)
        if prefixer is not None:
            self._show(rank, stream, "".join(prefixer.finish()))

    def forget(self, rank: int) -> None:
        """Drops the last lines of this rank, which has ended; its streams may go on for a moment."""
        self._forgotten.add(rank)
        self._drop_forgotten(rank)

    def last_lines(self, rank: int) -> list[Line]:
        """The end of the rank's stderr, without empty lines; none if it is forgotten."""
        if rank not in self._tails:
            return []
        unended = Line(self._unended[rank].rstrip(), self._written_s[rank])
        return [*self._tails[rank], *([unended] if unended.text else [])][-_TAIL_LINES:]

    def close(self) -> None:
        self._close_files()
        self._show_tracebacks()
        for (rank, stream), prefixer in self._prefixers.items():
            self._show(rank, stream, "".join(prefixer.finish()))
        self._due.clear()

    def _drop_forgotten(self, rank: int) -> None:
        if rank in self._forgotten and not any((rank, stream) in self._prefixers for stream in ("stdout", "stderr")):
            self._forgotten.discard(rank)
            for known in (self._tails, self._unended, self._written_s):
                known.pop(rank, None)

    def _open_file(self, rank: int, stream: str) -> None:
        if self._directory is None:
            return
        path = _path(self._directory, self._width, rank, stream)
        try:
            self._file[rank, stream] = _opened(path)
        except OSError as error:
            self._give_up_files(path, error)

    def _as_kept(self, rank: int, stream: str, text: str) -> str:
        if self._stampers is None:
            return text
        return "".join(self._stampers.setdefault((rank, stream), Prefixer("", self._stamp)).feed(text))

    def _keep(self, file: FileIO, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            self._give_up_files(file.name, error)

    def _give_up_files(self, path: object, error: OSError) -> None:
        self._directory = None  # for processes that join later, too
        self._close_files()
        self._warn(
            f"warning: cannot write to {path}: {error.strerror}; the ranks' output now goes to the terminal "
            f"only, to no file\nhint: the job goes on; {self._flag} names the folder"
        )

    def _close_files(self) -> None:
        while self._file:
            self._close_file(*next(iter(self._file)))

    def _close_file(self, rank: int, stream: str) -> None:
        """Writes at most the end of a line that gets a time.

        A file that cannot be closed, for example on a server that is gone, is not reported.
        """
        with contextlib.suppress(OSError), self._file.pop((rank, stream)) as file:
            stamper = (self._stampers or {}).pop((rank, stream), None)
            if stamper is not None:
                file.write("".join(stamper.finish()).encode("utf-8", "surrogateescape"))

    def _show_tracebacks(self, now: float | None = None) -> None:
        for ranks, text in self._tracebacks.release(now):
            first = ranks[0]
            if len(ranks) == 1:
                self._show(first, "stderr", "".join(self._prefixers[first, "stderr"].feed(text)))
            else:
                prefixer = Prefixer(f"[{ranges(ranks)}]<stderr>:", self._stamp)
                self._show(first, "stderr", "".join([*prefixer.feed(text), *prefixer.finish()]))
            for rank in self._ended.intersection(ranks):
                self._ended.discard(rank)
                self.end(rank, "stderr")

    def _show(self, rank: int, stream: str, text: str) -> None:
        if not text or self._only_rank not in (None, rank):
            return
        terminal = self._terminals[stream]
        if self._last.get(terminal, (rank, stream)) != (rank, stream):
            self._end_last_line(stream)
        if text.endswith("\n"):
            self._last.pop(terminal, None)
        else:
            self._last[terminal] = rank, stream
        self._put(stream, text)

    def _put(self, stream: str, text: str) -> None:
        target = self._streams[stream]
        with _written_to(stream):
            target.write(text.encode("utf-8", "surrogateescape"))
            target.flush()


def _where(target: BinaryIO) -> object:
    """Identifies the target of a stream: two streams may share a terminal."""
    try:
        status = os.fstat(target.fileno())
    except OSError:  # it is not a file
        return id(target)
    return status.st_dev, status.st_ino, status.st_rdev
