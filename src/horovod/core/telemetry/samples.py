# SPDX-License-Identifier: Apache-2.0
"""Where a thread of the script is: the part of a training step, and the line of the script."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from horovod.core.tracebacks import is_of_script

__all__ = ["IN_HOROVOD", "Samples", "stacks"]

IN_HOROVOD = "Horovod"  # waits for other ranks, or for data
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_NOT_A_SCRIPT = ("<", os.path.dirname(os.__file__) + os.sep)
_WAITING = tuple(_PACKAGE + name for name in ("core" + os.sep, "world" + os.sep))
_LOADER = "the data loader"
# A part of a file's path, and the part of a step that this file's callees are in. The innermost that fits counts.
_PARTS = (
    (os.path.join("torch", "utils", "data", ""), _LOADER),
    (os.path.join("tensorflow", "python", "data", ""), _LOADER),
    (os.path.join("trainers", "data_adapters", ""), _LOADER),
    (os.path.join("horovod", "data", ""), _LOADER),
    (os.path.join("torch", "autograd", ""), "backward"),
    (os.path.join("torch", "_tensor.py"), "backward"),
    (os.path.join("eager", "backprop.py"), "backward"),
    (os.path.join("torch", "optim", ""), "the optimizer"),
    (os.path.join("keras", "src", "optimizers", ""), "the optimizer"),
    (os.path.join("optax", ""), "the optimizer"),
    (os.path.join("torch", "nn", "modules", "module.py"), "forward"),
    (os.path.join("keras", "src", "layers", ""), "forward"),
)
# Here the main thread runs a compiled function of TensorFlow, whose data pipeline may call the script on other threads.
_COMPILED = os.path.join("tensorflow", "python", "eager", "")
_MOST_SAMPLES = 300  # of the last 15 s
_MOST_LINES = 6  # in a status
_MOST_FRAMES = 40
_MOST_THREADS = 32


class Samples:
    """Where the main thread was, at moments in the last while.

    If it was in a compiled function that has the script's data loader run on another thread, as Keras' fit does: there.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._taken: deque[tuple[str, str]] = deque(maxlen=_MOST_SAMPLES)

    def take(self) -> None:
        """Looks once, for some microseconds."""
        frames = sys._current_frames()
        frame = frames.pop(self._main or 0, None)
        frames.pop(threading.get_ident(), None)  # as in stacks()
        if frame is not None:
            in_loader = _line_in_loader(frames.values()) if _COMPILED in frame.f_code.co_filename else ""
            self._taken.append((_LOADER, in_loader) if in_loader else part_and_line(frame))

    def summary(self) -> dict[str, Any] | None:
        """For a status: the number of samples, and the most frequent lines. None if there is no sample."""
        if not self._taken:
            return None
        lines = [[part, line, count] for (part, line), count in Counter(self._taken).most_common(_MOST_LINES)]
        return {"samples": len(self._taken), "lines": lines}


def part_and_line(frame: FrameType) -> tuple[str, str]:
    """The part of the training step ("" if it is unknown), and the script's line: `function (file.py:12)`."""
    part = IN_HOROVOD if frame.f_code.co_filename.startswith(_WAITING) else ""
    line = ""
    current: FrameType | None = frame
    while current is not None and not (part and line):
        path = current.f_code.co_filename
        if not part:
            part = next((name for piece, name in _PARTS if piece in path), "")
        if not line and is_of_script(path) and not path.startswith(_NOT_A_SCRIPT):
            line = _line(current)
        current = current.f_back
    return part, line or _line(frame)


def _line_in_loader(frames: Iterable[FrameType]) -> str:
    """The script's line that a data loader has called on one of these threads; "" if there is none."""
    for frame in frames:
        line = ""
        current: FrameType | None = frame
        while current is not None:
            path = current.f_code.co_filename
            if not line and is_of_script(path) and not path.startswith(_NOT_A_SCRIPT):
                line = _line(current)
            if line and any(piece in path for piece, name in _PARTS if name == _LOADER):
                return line
            current = current.f_back
    return ""


def stacks() -> list[dict[str, Any]]:
    """The stacks of all threads that run Python, the main thread first; the innermost call last, as in tracebacks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()
    # With its own frame in it, this function's frame would keep all frames, and what they hold, until the garbage is
    # collected. TensorFlow's data sets must go before the interpreter ends.
    del frames[threading.get_ident()]
    found = sorted(frames.items(), key=lambda item: item[0] != main)
    shown = [(ident, frame) for ident, frame in found if not _is_own(names, ident)]
    return [
        {"thread": "main" if ident == main else names.get(ident, str(ident)), "frames": _frames(frame)}
        for ident, frame in shown[:_MOST_THREADS]
    ]


def _is_own(names: dict[int | None, str], ident: int) -> bool:
    name = names.get(ident, "")
    return name.startswith("horovod-") and name != "horovod-data-loader"  # which runs the script's code


def _frames(innermost: FrameType) -> list[str]:
    lines: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(lines) < _MOST_FRAMES:
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return lines[::-1]


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})"
