# SPDX-License-Identifier: Apache-2.0
"""The traceback of an error of ours that ends the script: the script's own frames, without ours in between.

Warnings point at the script, too.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from horovod.core.wording import plain
from horovod.settings import SettingError, Settings

__all__ = ["formatted", "install", "is_of_script", "warn", "without_internals"]

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
# An argument that is wrong raises one of these where the argument is checked.
_OF_ARGUMENTS = (TypeError, ValueError, NotImplementedError)
_installed = False


def install() -> None:
    """From now on, for all exceptions that end the script, a thread, or a child process; once a process."""
    global _installed
    if _installed:
        return
    _installed = True
    before, before_in_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shorter = _shortened(error, trace)
        before(kind, error.with_traceback(shorter), shorter)  # Python's own hook shows the one in the error

    def hook_of_thread(given: threading.ExceptHookArgs) -> None:
        kind, error, trace, thread = given
        if error is not None:
            trace = _shortened(error, trace)
            error = error.with_traceback(trace)
        before_in_thread(threading.ExceptHookArgs((kind, error, trace, thread)))

    sys.excepthook = hook
    threading.excepthook = hook_of_thread
    os.register_at_fork(after_in_child=_shorten_in_child)
    processes = sys.modules.get("multiprocessing.process")
    # The last is true while a child that is spawned imports the script.
    if processes and (processes.parent_process() or getattr(processes.current_process(), "_inheriting", False)):
        _shorten_in_child()


def _shorten_in_child() -> None:
    """multiprocessing shows the exception that ends a child by print_exc, without a hook."""
    before = traceback.print_exc

    def print_exc(*args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            error.__traceback__ = _shortened(error, error.__traceback__)
        before(*args, **kwargs)

    traceback.print_exc = print_exc


def formatted(error: BaseException) -> str:
    """An error of the script's function as Python would show it, without the frames of ours that have called it."""
    trace = error.__traceback__
    while not _shows_all() and trace is not None and _is_ours(trace) and trace.tb_next is not None:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, _shortened(error, trace)))


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """A warning at the script's line, below which only packages have called."""
    frames = list(_callers())
    level = next((level for level, path in frames if is_of_script(path)), None)
    outside = next((level for level, path in frames if not path.startswith(_PACKAGE)), frames[-1][0])
    warnings.warn(plain(text), category, stacklevel=level or outside)


def _callers() -> Iterator[tuple[int, str]]:
    """The stacklevel and the file of each caller of warn()."""
    level = 2
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield level, frame.f_code.co_filename
        level, frame = level + 1, frame.f_back


def is_of_script(path: str) -> bool:
    """True of a file outside of installed packages. TensorFlow makes files of the functions that it traces."""
    return not path.startswith(_PACKAGE) and "-packages/" not in path and "__autograph_generated_file" not in path


def _shortened(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    return trace if _shows_all() else without_internals(error, trace)


def _shows_all() -> bool:
    try:
        return Settings.from_environment().full_traceback
    except SettingError:  # which may be the error
        return False


def without_internals(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """The traceback of an error that we have raised on purpose without our frames; any other one as it is."""
    frames = list(_frames(trace))
    if not frames or not _is_ours(frames[-1]):
        return trace
    is_of_rank = getattr(error.__cause__, "is_of_rank", False)  # what the function of horovod.run has raised
    if not (is_of_rank or type(error).__module__.startswith("horovod.") or type(error) in _OF_ARGUMENTS):
        return trace  # a bug of ours: everything helps
    made = None
    for one in reversed([frame for frame in frames if not _is_ours(frame)]):
        made = TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return made or trace


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_PACKAGE)
