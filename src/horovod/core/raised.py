# SPDX-License-Identifier: Apache-2.0
"""Ends a process whose script has raised while a thread of it lives on: the other ranks would wait for it for ever.

A thread may finish what it does, such as writing a checkpoint, for HOROVOD_RAISED_GRACE_SECONDS. A script that has
raised nothing is left alone, and so is an interactive interpreter.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from types import TracebackType

from horovod.core import context as contexts
from horovod.core.wording import tell

__all__ = ["begin", "watch"]

_TELL_S = 3.0
_LOOK_S = 0.1
_LONGEST = 200  # characters
_HEARD_S = 1.0  # in which the other ranks hear why
_watched = False


def watch(grace_s: float) -> None:
    """From now on, an exception that ends the script is followed; once a process. `grace_s`: 0 is for ever."""
    global _watched
    if _watched or grace_s <= 0 or sys.flags.interactive or hasattr(sys, "ps1"):
        return
    _watched = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if threading.current_thread() is threading.main_thread():
            begin(error, grace_s)

    sys.excepthook = hook


def begin(error: BaseException, grace_s: float) -> None:
    """The script is about to end with this exception. Does nothing if only the main thread is left."""
    if grace_s > 0 and _living():
        text = f"raised {type(error).__name__}: {error}".splitlines()[0][:_LONGEST]
        threading.Thread(target=_follow, args=(text, grace_s), name="horovod-raised", daemon=True).start()


def _follow(text: str, grace_s: float) -> None:
    while threading.main_thread().is_alive():  # an excepthook may be all that has failed
        time.sleep(_LOOK_S)
    until = time.monotonic() + grace_s
    who = f"rank {contexts.rank()}" if contexts.is_initialized() else "this process"
    if grace_s > _TELL_S:
        time.sleep(_TELL_S)
        _say(
            f"{who} {text}; its threads keep it alive ({', '.join(_living())}); it is ended in {grace_s - _TELL_S:g} s"
        )
    while time.monotonic() < until:
        time.sleep(_LOOK_S)
    threads = ", ".join(_living())
    if not threads:  # it ends by itself: exit handlers may take their time
        return
    why = f"{who} {text}; it was ended, since its threads kept it alive for {grace_s:g} s ({threads})"
    _say(f"{why}\nhint: HOROVOD_RAISED_GRACE_SECONDS gives them more time; a daemon thread keeps no process alive")
    if contexts.is_initialized():
        contexts.current().abort(why, contexts.rank())
        time.sleep(_HEARD_S)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)


def _living() -> list[str]:
    """The names of the threads that the interpreter waits for at its end."""
    main = threading.main_thread()
    return [one.name for one in threading.enumerate() if one is not main and not one.daemon]


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        tell(f"horovod: {text}")
