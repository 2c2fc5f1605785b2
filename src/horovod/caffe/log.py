# SPDX-License-Identifier: Apache-2.0
"""Lines as Caffe's logging library, glog, prints them: scripts read them. To stderr, by rank 0 alone."""

from __future__ import annotations

import os
import sys
import threading
import time

from horovod.core.wording import plain

__all__ = ["Log", "number"]


def number(value: float) -> str:
    """A number as C++ prints it: six significant digits."""
    return f"{value:g}"


class Log:
    """`speaks`: whether information is printed; fatal lines always are."""

    def __init__(self, speaks: bool = True) -> None:
        self.speaks = speaks

    def info(self, text: str) -> None:
        """A line of progress or of results."""
        if self.speaks:
            self._write("I", text)

    def warning(self, text: str) -> None:
        """Something that the user may not want."""
        if self.speaks:
            self._write("W", text)

    def error(self, text: str) -> None:
        """Something that failed, while the rest goes on."""
        if self.speaks:
            self._write("E", text)

    def fatal(self, text: str) -> None:
        """Why the process ends. The caller ends it."""
        self._write("F", text)

    def _write(self, level: str, text: str) -> None:
        now = time.time()
        caller = sys._getframe(2)
        place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
        stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e6):06d}"
        line = f"{level}{stamp} {threading.get_native_id():5d} {place}] {plain(text)}\n"
        sys.stderr.write(line)
        sys.stderr.flush()
