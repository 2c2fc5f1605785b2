# SPDX-License-Identifier: Apache-2.0
"""Lets the other ranks ask where this one stands, for a stall report.

The answer is the main thread's Python stack, written by faulthandler's handler of a real-time signal, which works
whatever that thread is doing.
"""

from __future__ import annotations

import faulthandler
import logging
import signal

from horovod.core import native
from horovod.core.temporary_files import memory_file

__all__ = ["offer"]

_log = logging.getLogger("horovod")

SIGNAL = signal.SIGRTMIN + 7
_file: int | None = None


def offer() -> None:
    """Once a process. Does nothing if the script handles the signal itself."""
    global _file
    if _file is not None or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    try:
        _file = memory_file("horovod-stack")
    except OSError as error:
        _log.warning("horovod: warning: stall reports cannot show where this rank stands: %s", error.strerror)
        return
    faulthandler.register(SIGNAL, file=_file, all_threads=False)
    native.library().hvd_stack_source(SIGNAL, _file)
