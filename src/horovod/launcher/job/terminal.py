# SPDX-License-Identifier: Apache-2.0
"""The launcher's terminal: signals that users send from it, and streams that it no longer takes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import TextIO

__all__ = ["discard", "discard_unwritten", "signals_as_bytes"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (*_ENDING, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2)


@contextlib.contextmanager
def signals_as_bytes() -> Iterator[int]:
    """A descriptor from which each signal of _SIGNALS is read as its number.

    Once asked to end, this process ignores who asks again: it is about to end, and its exit code says why.
    """
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    asked = []

    def on_signal(number: int, _: object) -> None:
        # The byte in the pipe is what counts. But if our output has no reader any more, the loop that reads the pipe is
        # stuck in a write: the second request gives the output up, and the write returns.
        if number not in _ENDING or (number == signal.SIGHUP and number in asked):  # a terminal's end may come twice
            return
        asked.append(number)
        if len(asked) > 1:
            discard(sys.stdout, sys.stderr)

    for number in _SIGNALS:
        if before[number] is not signal.SIG_IGN:  # nohup
            signal.signal(number, on_signal)
    old = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    try:
        yield woken
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if asked and number in _ENDING else handler)
        os.close(woken)
        os.close(waker)


def discard(*streams: TextIO) -> None:
    """Sends what is written from now on nowhere; a write that blocks right now returns."""
    with open(os.devnull, "wb") as nowhere:
        for stream in streams:
            os.dup2(nowhere.fileno(), stream.fileno())


def discard_unwritten(stream: TextIO) -> None:
    """Drops text that cannot be written: the interpreter would try again at its end, and fail there once more."""
    try:
        stream.flush()
    except OSError:
        discard(stream)
