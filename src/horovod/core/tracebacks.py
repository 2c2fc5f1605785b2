# SPDX-License-Identifier: Apache-2.0
"""The traceback of an error of ours that ends the script: the script's own frames, without ours in between."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from horovod.settings import SettingError, Settings

__all__ = ["install", "without_internals"]

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
# An argument that is wrong raises one of these where the argument is checked.
_OF_ARGUMENTS = (TypeError, ValueError, NotImplementedError)
_installed = False


def install() -> None:
    """From now on, for all exceptions that reach sys.excepthook; once a process."""
    global _installed
    if _installed:
        return
    _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shorter = trace if _shows_all() else without_internals(error, trace)
        before(kind, error.with_traceback(shorter), shorter)  # Python's own hook shows the one in the error

    sys.excepthook = hook


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
    if not type(error).__module__.startswith("horovod.") and type(error) not in _OF_ARGUMENTS:
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
