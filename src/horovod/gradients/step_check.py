# SPDX-License-Identifier: Apache-2.0
"""Tells the ranks of each other's options and gradients by 24 bytes after a step (step 2 of a gradient's way).

Three mistakes are not seen in a loss curve: options, such as the learning rate, that one rank alone changes; ranks that
train on the same rows; and which rank's gradient was the first that is not finite. The bytes are sent after each of the
first steps, and later after every 16th. Only if these show something are names and values exchanged.

The bytes are combined by BitOr, to which a rank that has joined adds nothing. If one rank gives x and ~x, and another
one something else, then some bit is set in both results.
"""

from __future__ import annotations

import json
import logging
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from horovod.core import context as contexts
from horovod.core.arrays import collectives
from horovod.core.exceptions import HorovodInternalError, InvalidRequestError, MismatchError, NotInitializedError, named
from horovod.core.native import BitOr
from horovod.core.operations import Operation
from horovod.core.process_sets import ProcessSet, speaks
from horovod.core.tracebacks import warn
from horovod.core.wording import quoted
from horovod.gradients.among_ranks import ANSWER_TIMEOUT_S, NoAnswerError, Steps, answer, listed, texts_of_all

__all__ = ["EVERY", "SAMPLED_STEPS", "Options", "StepCheck", "floats_of", "given", "sampled", "step_check"]

Options = Callable[[], Iterable[tuple[str, Any]]]

_log = logging.getLogger("horovod")

EACH_UNTIL, EVERY = 16, 16  # the steps whose options are compared: fewer than SAMPLED_STEPS at first
SAMPLED_STEPS = 20
_LEAVE_TIMEOUT_S = 2.0
_SAMPLE = 16  # elements of a gradient
# Gradients of one batch change smoothly from step to step, or from step to next but one if the learning rate is so high
# that they swing; those of different batches do not: of independent numbers the second differences are 3 times the
# first ones (by their squares), 2.2 to 2.9 in so few steps. Between lie steps that are too long: either may be.
_ROUGH = 2.0
_ALL = 0xFFFFFFFF
_NOT_SENT = (HorovodInternalError, NotInitializedError, InvalidRequestError)  # the last: this rank has joined, say
_PRESENT, _OPTIONS, _ROWS, _NOT_FINITE = 0, 1, 3, 5  # of the six words; a digest is followed by its complement

_OF_OPTIONS = (
    "hint: change options on all ranks alike; if a scheduler looks at the loss, give it the average over the ranks, "
    "hvd.allreduce(loss); HOROVOD_REPLICA_CHECK_STEPS=0 turns this check off"
)
_OF_ROWS = (
    "hint: give each rank its own part of the data: by a DistributedSampler, by dataset.shard(hvd.size(), hvd.rank()), "
    "or by another random seed on each rank. If the ranks should have the same rows, for example to test that a model "
    "overfits one batch, ignore this; HOROVOD_SAME_ROWS_CHECK=0 turns it off"
)
_OF_FINITE = (
    "hint: look at the rows and the loss of that rank at that step. With a scaled loss (fp16) some such steps are "
    "normal: the scaler skips them. HOROVOD_FINITE_CHECK=off turns this check off"
)


def sampled(flat: Any) -> Any:
    """A few elements of a gradient of one dimension."""
    return flat[:: max(1, len(flat) // _SAMPLE)][:_SAMPLE]


def floats_of(thing: Any) -> Iterator[tuple[str, float]]:
    """The public attributes of an optimizer that are floats: its options."""
    for name, value in sorted(vars(thing).items()):
        if isinstance(value, float) and not name.startswith("_"):
            yield name, value


def given(options: Options | None, label: str, warn: Callable[[str], None]) -> list[tuple[str, Any]]:
    """The options; none if an optimizer of the user cannot say its own: it trains as well without the check."""
    try:
        return [] if options is None else list(options())
    except Exception as error:
        warn(f"the options of {label} cannot be compared: {named(error)}")
        return []


class StepCheck:
    """The checks of one optimizer or tape.

    A step is begin(), see() for each gradient of this rank, and end(). `name`: as of a reduction, equal on
    all ranks; `label`: what texts call it. `warn`: how a warning is given.
    """

    def __init__(self, name: str, label: str, process_set: ProcessSet, warn: Callable[[str], None] = warn) -> None:
        self._name = f"step_check.{name.replace('/list-', '.')}"  # the mark of gradients
        self._label = label
        self._process_set = process_set
        self._warn = warn
        self._steps = Steps(process_set)
        self._step = 0
        self._words = np.zeros(6, np.uint32)
        self._operation: Operation | None = None
        self._sent = (0, "")  # the step, and its options
        self._has_told: set[str] = set()  # in this generation, since the last join
        self._watches_rows = self._has_told_of_rows = False
        self._history: list[np.ndarray[Any, Any]] = []  # the samples of the steps so far, all equal on all ranks
        self._samples: list[tuple[str, Any]] = []
        self._odd: list[str] = []  # this rank's gradients that are not finite
        self._is_off = False  # for the rest of the generation
        self._is_apart = False  # from the script, on another thread
        self.is_due = self.takes_samples = self.looks_for_nan = False

    def begin(self, number: int | None = None) -> bool:
        """A step begins, or begins again. Whether something is to be compared in it: the same on all ranks.

        number: of the step, from 0, if another count than of these calls is meant.
        """
        self.is_due = self.takes_samples = self.looks_for_nan = False
        self._samples, self._odd = [], []
        self._is_apart = number is not None
        step = self._steps.begin()
        if step is None or self._steps.settings.profile:  # with profile, the ranks train apart
            return False
        if number is not None:
            step = number
            self._is_off |= self._steps.is_after_join  # until which the ranks have counted apart
        settings = self._steps.settings
        if step == 0:
            self._has_told.clear()
        if step == 0 and not self._steps.is_after_join:
            self._operation, self._is_off = None, False
            self._history.clear()
            self._watches_rows = settings.same_rows_check and not self._has_told_of_rows
        if self._is_off:
            return False
        self._step = step
        self.looks_for_nan = settings.finite_check != "off"
        self.takes_samples = self._watches_rows
        of_options = settings.replica_check_steps > 0 and (step < EACH_UNTIL or step % EVERY == 0)
        self.is_due = of_options or self.takes_samples or self.looks_for_nan
        return self.is_due

    def see(self, name: str, sample: Callable[[], Any], is_finite: Callable[[], bool], label: str = "") -> None:
        """A gradient of this rank, before its reduction. sample(): a few elements; None if they cannot be known.

        label: what texts call it, if not by its name, which is equal on all ranks.
        """
        try:
            if self.takes_samples:
                self._samples.append((name, sample()))
            if self.looks_for_nan and not is_finite():
                self._odd.append(label or name)
        except Exception as error:
            self._samples.append((name, None))
            if "failure" not in self._has_told:
                self._has_told.add("failure")
                self._warn(f"the gradient of {quoted(label or name)} cannot be looked at: {named(error)}")

    def end(self, options: Options | None) -> None:
        """The gradients of the step are reduced: sends what is due, and judges what was sent before.

        Warns on one rank, or raises on all of them, if the settings want an error. Nothing is sent before the
        gradients are reduced: if that fails, some ranks may never come here. It waits for the other ranks only if there
        is something to tell, before gradients are used, if the settings want that, and on a thread of its own.
        `options`: gives names and values, which must be equal on all ranks.
        """
        self._steps.end()
        try:
            self._judge()
            if self.is_due:
                self._send(options)
                # Before gradients are used; or on a thread of its own, which has time.
                if self.looks_for_nan or self._steps.settings.replica_check == "error" or self._is_apart:
                    self._judge()
        except NoAnswerError as no_answer:
            self._turn_off(no_answer)

    def complete(self) -> None:
        """Waits for what was sent last, before this rank leaves. It asks no other rank any more."""
        try:
            self._judge(is_leaving=True)
        except NoAnswerError as no_answer:
            self._turn_off(no_answer)

    def _turn_off(self, no_answer: NoAnswerError) -> None:
        """The ranks count apart, as if one has left out a step; or the generation is over, as the script will see."""
        self._is_off, self._operation = True, None
        _log.info("%s: no more checks of its steps: %s", self._label, no_answer.__cause__ or "another rank is missing")

    def _send(self, options: Options | None) -> None:
        words = self._words = np.zeros(6, np.uint32)
        words[_PRESENT] = 1 << (self._process_set.rank() or 0) % 32
        spelled = ""
        if options is not None and self._steps.settings.replica_check_steps > 0:
            pairs = given(options, self._label, self._warn)
            spelled = json.dumps([[name, _value(value)] for name, value in pairs]) if pairs else ""
        if spelled:
            self._put(_OPTIONS, zlib.crc32(spelled.encode()))
        if self.takes_samples:
            self._put_samples()
        words[_NOT_FINITE] = len(self._odd) > 0
        before = _under_way.get((self._name, self._process_set))
        if before is not None:  # of an optimizer that is not used any more
            before.complete()
        _under_way[self._name, self._process_set] = self
        self._sent = self._step, spelled
        try:
            self._operation = collectives.allreduce(
                words, self._name, (BitOr, None, 1.0, 1.0, self._process_set), in_place=True
            )
        except _NOT_SENT as error:
            raise NoAnswerError from error

    def _judge(self, is_leaving: bool = False) -> None:
        operation, self._operation = self._operation, None
        if operation is None:
            return
        if _under_way.get((self._name, self._process_set)) is self:
            del _under_way[self._name, self._process_set]
        answer(operation, _LEAVE_TIMEOUT_S if is_leaving else ANSWER_TIMEOUT_S)
        found = [int(word) for word in self._words]
        news = [
            *(["finite"] if found[_NOT_FINITE] else []),
            *(["options"] if found[_OPTIONS] & found[_OPTIONS + 1] else []),
        ]
        for what in [what for what in news if what not in self._has_told]:
            self._has_told.add(what)
            if not is_leaving:
                self._tell_of_nan() if what == "finite" else self._tell_of_options()
        if self._watches_rows:
            self._compare_rows(found)

    def _put(self, place: int, digest: int) -> None:
        self._words[place : place + 2] = digest, digest ^ _ALL

    def _put_samples(self) -> None:
        samples = sorted(self._samples, key=lambda pair: pair[0])
        arrays = [_as_floats(sample) for _, sample in samples if sample is not None]
        whole = np.concatenate(arrays) if len(arrays) == len(samples) > 0 else np.zeros(0, np.float32)
        if whole.any() and np.isfinite(whole).all():
            names = "\n".join(f"{name} {len(array)}" for (name, _), array in zip(samples, arrays, strict=True))
            self._put(_ROWS, zlib.crc32(whole.tobytes(), zlib.crc32(names.encode())))
            self._history.append(whole)
        else:  # they show nothing: as unlike as can be
            self._words[_ROWS : _ROWS + 2] = _ALL

    def _tell_of_options(self) -> None:
        found = {rank: dict(pairs) for rank, pairs in self._of_all(self._sent[1] or "[]", "options").items()}
        names = list(dict.fromkeys(name for options in found.values() for name in options))
        for name in names:
            values = [options.get(name) for options in found.values()]
            if _are_alike(values):
                continue
            ranks_of: dict[str, list[int]] = {}
            for rank, value in zip(found, values, strict=True):
                ranks_of.setdefault("not there" if value is None else value, []).append(rank)
            shown = ", ".join(f"{value} on {listed(ranks)}" for value, ranks in ranks_of.items())
            self._tell(f"the ranks differ in {quoted(name)}: {shown}\n{_OF_OPTIONS}", "replica_check", list(found))
            return

    def _tell_of_nan(self) -> None:
        found = self._of_all(json.dumps(self._odd), "finite")
        rank = next((rank for rank, names in found.items() if names), None)
        if rank is None:  # it has joined since
            return
        more = len(found[rank]) - 1
        others = [other for other, names in found.items() if names and other != rank]
        also = f"; {listed(others)} {'have' if len(others) > 1 else 'has'} such gradients, too" if others else ""
        text = (
            f"on rank {rank} the gradient of {quoted(found[rank][0])} is not finite"
            f"{f', and {more} more of this rank' if more else ''}{also}\n{_OF_FINITE}"
        )
        self._tell(text, "finite_check", list(found))

    def _of_all(self, text: str, what: str) -> dict[int, Any]:
        """The JSON of all ranks, read, by rank."""
        try:
            texts = texts_of_all(text, f"{self._name}.{what}", self._process_set, answer)
        except _NOT_SENT as error:
            raise NoAnswerError from error
        return {rank: json.loads(text) for rank, text in zip(self._process_set.ranks or (), texts, strict=True) if text}

    def _tell(self, text: str, setting: str, present: list[int]) -> None:
        text = f"in step {self._sent[0] + 1} of {self._label}, {text}"
        if getattr(self._steps.settings, setting) == "error":
            raise MismatchError(text)
        if contexts.rank() == present[0]:
            self._warn(text)

    def _compare_rows(self, words: list[int]) -> None:
        several = words[_PRESENT].bit_count() > 1
        if not several or words[_ROWS] & words[_ROWS + 1]:
            self._watches_rows = False
            self._history.clear()
        elif len(self._history) >= SAMPLED_STEPS:
            history, self._history = self._history, []
            self._watches_rows = False
            if _roughness(history) > _ROUGH:
                self._has_told_of_rows = True
                if not speaks(self._process_set):
                    return
                self._warn(
                    f"in each of the first {self._sent[0] + 1} steps of {self._label}, all ranks had equal gradients: "
                    f"they seem to train on the same rows, and so to do the same work\n{_OF_ROWS}"
                )


def complete_all() -> None:
    """Judges what was sent last: an operation that is under way when this rank leaves is an error for the others."""
    for check in list(_under_way.values()):
        check.complete()


_under_way: dict[tuple[str, ProcessSet], StepCheck] = {}  # those that have sent something, by its name
contexts.before_leaving.append(complete_all)


def _roughness(history: list[np.ndarray[Any, Any]]) -> float:
    """The second differences of a series, in relation to the first ones; the median of all elements that change.

    Of successive steps, or of every other one: the smaller. 0 if the series are of different lengths, or nothing
    changes.
    """
    if len({len(sample) for sample in history}) > 1:
        return 0.0
    series = np.stack(history).astype(np.float64)
    found = []
    for parts in ([series], [series[::2], series[1::2]]):
        first, second = (sum((np.diff(part, n=n, axis=0) ** 2).sum(axis=0) for part in parts) for n in (1, 2))
        changes = first > 0
        found.append(float(np.median(second[changes] / first[changes])) if changes.any() else 0.0)
    return min(found)


def _as_floats(sample: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(sample).reshape(-1)
    return (array.view(array.real.dtype) if np.iscomplexobj(array) else array).astype(np.float32)


def _value(value: Any) -> str:
    """As texts show it: equal for 1 and 1.0, and for floats that differ in the last bits, as between machines."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))})"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e6 else f"{value:.7g}"
    return repr(value)


def _are_alike(values: list[str | None]) -> bool:
    """True if all are one, or are numbers that the rounding of _value has parted."""
    if len(set(values)) == 1:
        return True
    try:
        numbers = [float(value or "") for value in values]
    except ValueError:
        return False
    return all(math.isclose(number, numbers[0], rel_tol=1e-6) for number in numbers)


_checks: dict[tuple[str, ProcessSet], StepCheck] = {}


def step_check(name: str, label: str, process_set: ProcessSet) -> StepCheck:
    """The checks of a list of gradients, by its name: tapes come and go."""
    key = (name, process_set)
    if key not in _checks:
        _checks[key] = StepCheck(name, label, process_set)
    return _checks[key]
