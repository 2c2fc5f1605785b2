# SPDX-License-Identifier: Apache-2.0
"""The checks of step_check.py for steps that are compiled: they reduce without Python (step 2 of a gradient's way).

The native shims (native/shims/watch.h) take a few elements of each gradient of a watched list before it is submitted,
in the first steps and then seldom, and tell Python here. A thread compares them with the other ranks', so no step
waits. Options travel as one more gradient of the list, whose reduction nothing uses.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod.core import context as contexts
from horovod.core.exceptions import HorovodInternalError, MismatchError, NotInitializedError, named, text_of
from horovod.core.process_sets import ProcessSet
from horovod.core.wording import tell
from horovod.gradients.step_check import EVERY, SAMPLED_STEPS, StepCheck, complete_all
from horovod.settings import Settings

__all__ = ["MOST_OPTIONS", "Watched", "follow", "watched"]

_VALUES = 18  # of a gradient, as kWatchValues: whether it is finite, the number of samples, the samples
MOST_OPTIONS = 16
_DRAIN_TIMEOUT_S, _RAISED_TIMEOUT_S = 60.0, 2.0


class Watched:
    """A list of gradients of compiled steps.

    `options`: the names of those that its last tensor holds; None if that is a gradient like the others.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        number: int,
        check: StepCheck,
        gradients: Sequence[str],
        options: Sequence[str] | None,
    ) -> None:
        self._library = library
        self.number = number
        self._gradients = list(gradients)
        self._options = options
        self._check = check

    def follow(self, request: str, places: Sequence[int]) -> None:
        """The request of this name reduces the gradients at these places of the list."""
        numbers = (ctypes.c_int32 * len(places))(*places)
        self._library.hvd_watch_request(request.encode(), self.number, numbers, len(places))

    def compare(self, step: int, values: np.ndarray[Any, Any]) -> None:
        """Compares what the step's gradients were with the other ranks. Blocks until these have sent theirs."""
        rows = values.reshape(-1, _VALUES)
        self._check.begin(step)
        for place, (label, row) in enumerate(zip(self._gradients, rows, strict=False)):
            samples = functools.partial(row.__getitem__, slice(2, 2 + int(row[1])))
            self._check.see(str(place), samples, functools.partial(bool, row[0]), label)
        options = self._options
        self._check.end(None if options is None else lambda: zip(options, map(float, rows[-1, 2:]), strict=False))


def follow(number: int, request: str, places: Sequence[int]) -> None:
    """Watched.follow, by the list's number."""
    _by_number[number].follow(request, places)


_lists: dict[tuple[int, str, ProcessSet], Watched] = {}
_by_number: list[Watched] = []


def watched(
    library: ctypes.CDLL,
    name: str,
    label: str,
    process_set: ProcessSet,
    gradients: Sequence[str],
    options: Sequence[str] | None,
) -> Watched | None:
    """The watch of the list of this name; None if the settings want none. `library`: the shim's, which submits."""
    settings = Settings.from_environment()
    looks_at_all = settings.finite_check != "off"
    if settings.profile or not (settings.replica_check_steps or settings.same_rows_check or looks_at_all):
        return None
    key = (id(library), name, process_set)
    if key not in _lists:
        _listen(library)
        number = len(_by_number)
        every = 1 if looks_at_all else EVERY
        library.hvd_watch_list(number, len(gradients) + (options is not None), SAMPLED_STEPS, every, int(looks_at_all))
        check = StepCheck(f"compiled.{name}", label, process_set, _warn)
        _lists[key] = Watched(library, number, check, gradients, options)
        _by_number.append(_lists[key])
    return _lists[key]


def _warn(text: str) -> None:
    """No line of the script is running here."""
    tell(f"horovod: warning: {text}")


@functools.cache
def _listen(library: ctypes.CDLL) -> None:
    """Compares what a shim sees, from now on, on a thread."""
    functions = ("turn", "list", "request", "mark")
    for function in functions:
        library[f"hvd_watch_{function}"].restype = None
    library.hvd_watch_next.restype = ctypes.c_int64
    arrived = threading.Semaphore(0)

    def drain() -> None:
        """Waits until all that was seen is sent: the other ranks wait for it, and this rank is about to leave them."""
        library.hvd_watch_mark()
        arrived.acquire(timeout=_RAISED_TIMEOUT_S if hasattr(sys, "last_value") else _DRAIN_TIMEOUT_S)

    threading.Thread(target=_work, args=(library, arrived), name="horovod-checks", daemon=True).start()
    contexts.watch(lambda context: library.hvd_watch_turn(int(context is not None)))
    contexts.before_leaving.insert(contexts.before_leaving.index(complete_all), drain)


def _work(library: ctypes.CDLL, arrived: threading.Semaphore) -> None:
    number, step = ctypes.c_int32(), ctypes.c_uint64()
    values = (ctypes.c_float * 0)()
    while True:
        room = len(values)
        count = library.hvd_watch_next(ctypes.byref(number), ctypes.byref(step), values, ctypes.c_int64(room))
        if count > room:
            values = (ctypes.c_float * count)()
        elif number.value < 0:
            arrived.release()
        else:
            _compare(_by_number[number.value], step.value, np.array(values[:count], np.float32))


def _compare(watch: Watched, step: int, values: np.ndarray[Any, Any]) -> None:
    try:
        watch.compare(step, values)
    except MismatchError as error:  # as the settings ask; the script is somewhere else
        contexts.current().abort(text_of(error))
    except (HorovodInternalError, NotInitializedError):
        pass  # the generation has ended: the script's own operations say why
    except Exception as error:  # the training is as good as without the check
        _warn(f"a check of gradients has failed: {named(error)}")
