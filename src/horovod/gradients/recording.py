# SPDX-License-Identifier: Apache-2.0
"""The profile of a job (horovodrun --profile): when backward has each gradient ready, and the times of a step's parts.

In a job that is profiled, gradients are not reduced: ranks train apart, so that the times are those of compute alone,
with all ranks of the host busy. Rank 0 records the steps of the first optimizer that is wrapped, or of the first list
of gradients.

Threads: those of a reducer (gradients/reducer.py), one at a time; ListRecorder: any.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from horovod.core import context as contexts
from horovod.core.exceptions import InvalidRequestError
from horovod.core.telemetry.core_waits import LEAST_TOLD, WaitShare, too_busy
from horovod.core.wording import counted, tell
from horovod.settings import Settings
from horovod.world.files.whole import write_whole
from horovod.world.machine import packages

__all__ = [
    "FEWEST_STEPS",
    "FORMAT",
    "NO_ADASUM",
    "VERSION",
    "Apart",
    "Clock",
    "ListRecorder",
    "Recorder",
    "WallClock",
    "is_profiled",
    "recorder_of_job",
    "recorder_of_list",
    "refuse_profile",
]

FORMAT = "horovod-profile"
VERSION = 1
NO_ADASUM = "op=Adasum cannot be profiled\nhint: profile with op=Average, or unset HOROVOD_PROFILE"
FEWEST_STEPS = 20
_STEPS = 60
_DROPPED = 10  # the first ones: compilers and caches are still warming up
_MOST_BYTES = 100_000
_UNMARKED = (
    "warning: the optimizer's zero_grad() was not called before backward, so the time for the input counts as forward\n"
    "hint: call it after the batch is loaded"
)
_IN_LISTS = "the times for the input and for the update count as forward"
# After a validation or a checkpoint, forward takes longer than three median steps; both are seldom: at most every 20th
# step. In frameworks that tell no begin of a step, the pause is in the forward.
_PAUSE, _SELDOM = 3.0, 20
_SEVERAL_PASSES = (
    "\nhint: a step with several backward passes can be used if the optimizer knows of them (backward_passes_per_step)"
)
_NONE_RECORDED = (
    "warning: no profile was written: no gradient was recorded\n"
    "hint: reduce gradients by DistributedOptimizer, DistributedGradientTape or value_and_grad: those of plain "
    "hvd.allreduce are not recorded"
)
_NO_FORWARD = 0.05  # of backward

T = TypeVar("T")


class Clock(Protocol):
    """Moments, and the time between them; on a GPU they are known once the stream has got there."""

    def now(self) -> Any:
        """Never blocks."""
        ...

    def between_ms(self, begin: Any, end: Any) -> float:
        """Milliseconds; blocks until both moments have come."""
        ...


class WallClock:
    """Of work on the CPU."""

    def now(self) -> int:
        return time.perf_counter_ns()

    def between_ms(self, begin: int, end: int) -> float:
        return (end - begin) / 1e6


class Apart(Generic[T]):
    """In place of a reduction: gives back the rank's own tensor."""

    def __init__(self, tensor: T, name: str) -> None:
        self._tensor = tensor

    def wait(self) -> T:
        return self._tensor


class _Described(NamedTuple):
    dtype: str
    size: int  # in bytes
    is_sparse: bool = False


class _Step:
    """Moments of one step. `begin`: the last one's end, or zero_grad after it."""

    def __init__(self, before: Any) -> None:
        self.before = self.begin = before
        self.ready: dict[str, Any] = {}
        self.over: Any = None
        self.reduced: Any = None
        self.end: Any = None

    @property
    def first(self) -> Any:
        return next(iter(self.ready.values()))


class Recorder:
    """Notes the moments of steps, and writes the file after the last one, or at the end of the script.

    describe: dtype and bytes of a gradient, and whether it is sparse. name: of the job, for its readers.
    """

    def __init__(
        self,
        path: str,
        name: str,
        device: str,
        busy_ranks: int,
        describe: Callable[[Any], tuple[str, int, bool]],
        clock: Clock,
        unmarked: str = _UNMARKED,
    ) -> None:
        """`unmarked`: what is said if nothing has told of the begin of steps."""
        self._path = path
        self._unmarked = unmarked
        self._about: dict[str, Any] = {"name": name, "device": device, "busy_ranks": busy_ranks}
        self._describe = describe
        self._clock = clock
        self._described: dict[str, _Described] = {}
        self._steps: list[_Step] = []
        self._step = _Step(None)
        self._updates = 0
        self._knows_input = False
        self._is_over = False
        self._waits = WaitShare()

    def started(self, name: str, gradient: Any) -> None:
        """Backward has put a gradient in place, and its reduction is due."""
        if self._is_over:
            return
        if name in self._step.ready:  # the last step was left out, by a gradient scaler for example
            self._step = _Step(None)
        self._described[name] = _Described(*self._describe(gradient))
        self._step.ready[name] = self._clock.now()

    def backward_is_over(self) -> None:
        """All gradients of a pass are in place."""
        if not self._is_over:
            self._step.over = self._clock.now()

    def reduced(self) -> None:
        """Gradients can be used."""
        if not self._is_over:
            self._step.reduced = self._clock.now()

    def zeroed(self) -> None:
        """Called before backward, it marks the step's begin: most scripts have loaded their batch by then."""
        if not self._is_over and not self._step.ready:
            self._step.begin = self._clock.now()
            self._knows_input = True

    def updated(self) -> None:
        """The optimizer has made its step."""
        if self._is_over:
            return
        self._updates += 1
        step, now = self._step, self._clock.now()
        self._step = _Step(now)
        if step.ready and step.over is not None and step.reduced is not None and step.before is not None:
            step.end = now
            self._steps.append(step)
            if len(self._steps) == _DROPPED:
                self._waits = WaitShare()
        if len(self._steps) == _DROPPED + _STEPS:
            self.end()

    def end(self) -> None:
        """Writes what there is. Says so, and does not raise: training goes on."""
        if self._is_over:
            return
        self._is_over = True
        if not self._described:
            _say(_NONE_RECORDED)
            return
        self._about["core_wait"] = waited = round(self._waits.now(), 3)
        steps = self._steps[_DROPPED:] if self._knows_input else self._without_pauses(self._steps[_DROPPED:])
        if len(steps) < FEWEST_STEPS:
            fewest = _DROPPED + FEWEST_STEPS + 1
            steps_made = f"the job made {self._updates}, of which {len(self._steps)} can be used"
            hint = "" if self._updates <= 2 * len(self._steps) else _SEVERAL_PASSES
            _say(f"warning: no profile was written: it needs {fewest} training steps, {steps_made}{hint}")
            return
        try:
            write_whole(self._path, self._text(steps))
        except OSError as error:
            _say(f"warning: cannot write the profile: {error.filename}: {error.strerror}")
            return
        _say(f"the profile of {len(steps)} steps is in {self._path}; end the job, and do not keep what it has trained")
        if waited > LEAST_TOLD:
            _say(
                f"warning: the rank waited for a core {100 * waited:.0f}% of its time: {too_busy(waited)}\n"
                "hint: record while nothing else runs on this host, with no more ranks than cores"
            )
        if not self._knows_input:
            _say(self._unmarked)
        elif self._median("begin", "first", steps) < _NO_FORWARD * self._median("first", "over", steps):
            _say(
                "warning: the forward pass is missing in the profile: zero_grad() seems to come after it\n"
                "hint: call it after the batch is loaded and before the forward pass"
            )

    def _median(self, begin: str, end: str, steps: Sequence[_Step]) -> float:
        return statistics.median(self._clock.between_ms(getattr(step, begin), getattr(step, end)) for step in steps)

    def _without_pauses(self, steps: list[_Step]) -> list[_Step]:
        """All ranks pause together, for a validation or a checkpoint: such a step would count as a slow rank's."""
        if not steps:
            return steps
        most_ms = _PAUSE * self._median("begin", "end", steps)
        kept = [step for step in steps if self._clock.between_ms(step.begin, step.first) <= most_ms]
        if not (long := len(steps) - len(kept)):
            return steps
        found = f"{long} of {counted(len(steps), 'step')} had a forward of more than {_PAUSE:g} median steps"
        if long * _SELDOM > len(steps):
            _say(f"{found}: too many for pauses of the script, so they count as training")
            return steps
        _say(f"{found}, as after a validation or a checkpoint: left out")
        return kept

    def _text(self, steps: Sequence[_Step]) -> str:
        text = self._json(steps, list(self._described))
        return text if len(text) < _MOST_BYTES else self._json(steps, [""] * len(self._described))

    def _json(self, steps: Sequence[_Step], names: Sequence[str]) -> str:
        between = self._clock.between_ms
        parts = {
            "input_ms": [between(step.before, step.begin) for step in steps],
            "forward_ms": [between(step.begin, step.first) for step in steps],
            "backward_ms": [between(step.first, step.over) for step in steps],
            "update_ms": [between(step.reduced, step.end) for step in steps],
        }
        whole = zip(parts["forward_ms"], parts["backward_ms"], parts["update_ms"], strict=True)
        ready = [
            _spread([between(step.first, step.ready[name]) for step in steps if name in step.ready] or [0.0])
            for name in self._described
        ]
        described = self._described.values()
        sparse = [place for place, one in enumerate(described) if one.is_sparse]
        content = {
            "format": FORMAT,
            "version": VERSION,
            **self._about,
            "packages": packages(),
            **{
                name: dict(zip(("median", "p10", "p90"), _spread(values), strict=True))
                for name, values in parts.items()
            },
            "step_ms": [round(sum(step), 3) for step in whole],
            "gradients": {
                "name": list(names),
                "dtype": [one.dtype for one in described],
                "bytes": [one.size for one in described],
                "ready_ms": ready,
                **({"sparse": sparse} if sparse else {}),
            },
        }
        return json.dumps(content, separators=(",", ":")) + "\n"


class ListRecorder:
    """Of gradients that are in one list, as TensorFlow, JAX and Keras have them. Any thread.

    A step ends when its last gradient is ready: nothing tells of the update, nor of the input.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    def ready(self, name: str, dtype: str, of: int, size: int, is_sparse: bool = False) -> None:
        """One of `of` gradients, of so many bytes, has its value."""
        with self._lock:
            if name in self._seen:  # the last step was left out
                self._seen.clear()
            self._recorder.started(name, (dtype, size, is_sparse))
            self._seen.add(name)
            if len(self._seen) == of:
                self._seen.clear()
                self._recorder.backward_is_over()
                self._recorder.reduced()
                self._recorder.updated()


def _spread(values: Sequence[float]) -> list[float]:
    """Median, 10th and 90th percentile."""
    if len(values) < 2:
        return [round(values[0], 3)] * 3
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return [round(value, 3) for value in (statistics.median(values), tenths[0], tenths[-1])]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the reader of the output may be gone
        tell(f"horovod: {text}")


_taken = False  # an optimizer is recorded
_says_if_none = False
_lists: dict[str, ListRecorder | None] = {}  # by the list's name


def is_profiled() -> bool:
    """True if this job is profiled: its ranks train apart."""
    return bool(Settings.from_environment().profile)


def refuse_profile(framework: str) -> None:
    """For frameworks whose gradients are not recorded. Raises ValueError if this job is profiled."""
    if is_profiled():
        raise InvalidRequestError(
            f"gradients of {framework} cannot be profiled: those of PyTorch, TensorFlow, Keras and JAX can\n"
            "hint: leave out --profile, or unset HOROVOD_PROFILE"
        )


def recorder_of_list(name: str, device: str) -> ListRecorder | None:
    """The recorder for lists of gradients of this name; None on other ranks than 0, and for a second list."""
    if name not in _lists:
        made = recorder_of_job(device, lambda described: described, WallClock(), _IN_LISTS)
        _lists[name] = None if made is None else ListRecorder(made)
    return _lists[name]


def recorder_of_job(
    device: str, describe: Callable[[Any], tuple[str, int, bool]], clock: Clock, unmarked: str = _UNMARKED
) -> Recorder | None:
    """The recorder for the optimizer that is being wrapped; None on other ranks than 0, and for a second optimizer."""
    global _taken
    settings = Settings.from_environment()
    if not settings.profile or contexts.rank() != 0:
        return None
    if _taken:
        _say("warning: the profile is of the gradients that are reduced first; others are not recorded")
        return None
    _taken = True
    _say("HOROVOD_PROFILE is set: the ranks train apart, gradients are not reduced")
    busy_ranks = int(contexts.current().world.identity.local_size)
    name = Path(sys.argv[0]).stem or "python"
    made = Recorder(settings.profile, name, device, busy_ranks, describe, clock, unmarked)
    atexit.register(made.end)
    _end_before_sigterm(made)
    return made


def _say_if_none_is_recorded(context: contexts.Context | None) -> None:
    """At the end of a script that runs to its end, on rank 0 of a job that is profiled."""
    global _says_if_none
    if context is None or _says_if_none or context.rank != 0 or not context.trains_apart:
        return
    _says_if_none = True

    def say() -> None:
        if not _taken and not hasattr(sys, "last_value"):  # the script's last exception
            _say(_NONE_RECORDED)

    atexit.register(say)


contexts.watch(_say_if_none_is_recorded)


def _end_before_sigterm(recorder: Recorder) -> None:
    """Ctrl-C on horovodrun ends a rank by SIGTERM, which no atexit function sees. A script's own handler stays."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return

    def end(number: int, _: object) -> None:
        recorder.end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
