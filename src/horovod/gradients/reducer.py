# SPDX-License-Identifier: Apache-2.0
"""Step 2 of a gradient's way: which gradient is due, and what each rank owes the others. Imports no framework.

A *pass* is one backward; a *step* ends with begin_step(). A parameter is due when its gradient has been ready
`passes_per_step` times in a step; its reduction starts at that moment, while backward goes on. finish(), called at the
end of backward, makes a *round* of it: as soon as one reduction has started, every parameter that is not frozen is
reduced, so that all ranks agree without asking each other. One that has got no gradient on this rank contributes

  negative zeros if it has none at all. If the result is nothing but these, no rank has a gradient, and each keeps none:
    an optimizer would move a parameter by a gradient of zeros, through its momentum for example. Otherwise the result
    becomes the gradient;
  zeros, to which the result is added, if its gradient is still the one that the last round left: that value is
    reduced already, and reducing it again would count it once per rank. What the user changes in it before the
    step, by clipping for example, makes no difference;
  its gradient, if it is any other (accumulated in earlier passes, or set by the user, in place as well).

While `paused`, backward passes only accumulate: they do not count, and what they leave is part of the next reduction.

Threads: one backward at a time drives a reducer. finish() blocks until every rank has started the same reductions.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from horovod.core import context as contexts
from horovod.core.tracebacks import warn
from horovod.core.wording import counted, quoted
from horovod.gradients.recording import Recorder
from horovod.gradients.step_check import Options, StepCheck

__all__ = ["GradientReducer", "Gradients", "Waitable"]

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
T = TypeVar("T")


class Waitable(Protocol):
    """A started reduction; core/operations.py's Operation."""

    def wait(self) -> Any:
        """Blocks; returns the reduced tensor."""
        ...


class Gradients(Protocol[P_contra, T]):
    """How a framework's package reads and writes the gradient of a parameter."""

    def wanted(self, parameter: P_contra) -> bool:
        """True if the parameter is being trained: a frozen one needs no gradient."""
        ...

    def current(self, parameter: P_contra) -> object | None:
        """The gradient object as it stands, for comparison by identity; None if there is none."""
        ...

    def version(self, parameter: P_contra) -> int:
        """Grows by one with each change of the gradient in place, as when a pass adds to it."""
        ...

    def dense(self, parameter: P_contra) -> T:
        """The gradient to reduce. Raises if it has none that can be."""
        ...

    def zeros(self, parameter: P_contra) -> T:
        """Zeros like the parameter's gradient."""
        ...

    def nothing(self, parameter: P_contra) -> T:
        """The tensor sent for a missing gradient: negative zeros, whose sum shows it; or zeros, which count as one."""
        ...

    def is_nothing(self, reduced: T) -> bool:
        """True if a result shows that no rank has a gradient. All ranks get the same answer."""
        ...

    def clear(self, parameter: P_contra) -> None:
        """Leaves the parameter without a gradient."""
        ...

    def store(self, parameter: P_contra, reduced: T) -> None:
        """Makes `reduced` the gradient, if it is not that very tensor."""
        ...

    def add(self, parameter: P_contra, reduced: T) -> None:
        """Adds to the gradient."""
        ...

    def any(self, reduced: T) -> object:
        """An object that is true if an element differs from zero. Its truth may be costly to learn."""
        ...

    def sample(self, gradient: T) -> Any:
        """A few elements, as step_check.sampled takes them; None if they cannot be known now."""
        ...

    def is_finite(self, gradient: T) -> bool:
        """True if all elements are."""
        ...


class _Slot(Generic[P]):
    """One registered parameter.

    `reduced`: the gradient object that the last round left, held weakly: clearing gradients must free them. `version`:
    that object's, at that time. `spent`: that round was in this step and carried something, so more on top of it cannot
    be told apart. `kept`: a paused pass has put something into the gradient that no reduction has seen.
    """

    __slots__ = (
        "added",
        "after_pass",
        "kept",
        "name",
        "operation",
        "own",
        "parameter",
        "passes",
        "reduced",
        "spent",
        "version",
    )

    def __init__(self, name: str, parameter: P) -> None:
        self.name = name
        self.parameter = parameter
        self.passes = 0
        self.operation: Waitable | None = None
        self.own = False
        self.added = False
        self.reduced: Callable[[], object | None] = _nothing
        self.version = 0
        self.after_pass = 0  # the gradient's version after the last pass that was not due
        self.spent: object = False
        self.kept = False

    def begin(self) -> None:
        """A step begins for this parameter."""
        self.passes = 0
        self.spent = self.kept = False


def _nothing() -> None:
    return None


class GradientReducer(Generic[P, T]):
    """Reduces the gradients of one optimizer. `start(tensor, name)` starts one reduction and never blocks."""

    def __init__(
        self,
        gradients: Gradients[P, T],
        start: Callable[[T, str], Waitable],
        passes_per_step: int = 1,
        reduces_again: bool = False,
    ) -> None:
        """reduces_again: gradients that the script has replaced after a round are reduced; it must do no harm twice."""
        self.check: StepCheck | None = None
        self.options: Options | None = None  # what must be equal on all ranks
        self.passes_per_step = passes_per_step
        self.paused = False
        self.reduces_again = reduces_again
        self.trace: list[tuple[str, str, int]] | None = None  # (event, name, monotonic ns) once a list is put here
        self.recorder: Recorder | None = None  # of a job that is profiled
        self._gradients = gradients
        self._start_reduction = start
        self._slots: list[_Slot[P]] = []
        self._in_flight: list[_Slot[P]] = []
        self._round_done = False
        self._has_begun = False  # for the check

    def add(self, name: str, parameter: P) -> int:
        """Registers a parameter; returns its number for ready(). All ranks register the same names."""
        self._slots.append(_Slot(name, parameter))
        return len(self._slots) - 1

    @property
    def in_flight(self) -> list[str]:
        """Names of the reductions that have started and have not been waited for."""
        return [slot.name for slot in self._in_flight]

    def ready(self, number: int) -> None:
        """Backward has put a gradient in place. Starts the reduction when it is due; never blocks."""
        slot = self._slots[number]
        self._note("ready", slot)
        if slot.operation is not None:
            raise AssertionError(
                f"gradient {quoted(slot.name)} arrived again while it was being reduced: expected once in a backward\n"
                "hint: a layer that several checkpointed parts of a model share needs checkpoint(use_reentrant=False), "
                "or backward_passes_per_step with the number of parts"
            )
        if slot.spent:
            goes_on = self.reduces_again and self.passes_per_step > 1
            if not goes_on and not self._was_cleared(slot):
                passes = counted(self.passes_per_step, "backward pass", "backward passes")
                raise AssertionError(
                    f"gradient {quoted(slot.name)} was computed again after it had been reduced, before step() or "
                    f"zero_grad(): expected {passes} a step\n"
                    "hint: set backward_passes_per_step to accumulate gradients over several passes; if it is set, "
                    "call this optimizer's zero_grad() or step() after the last pass of an epoch"
                )
            slot.begin()  # cleared by other means than this optimizer's zero_grad()
            if goes_on:
                # An epoch's last passes came before: the script ends its steps elsewhere. The average of what is
                # averaged already and this pass is right, cleared or not; and clipping may come after any pass.
                slot.passes = self.passes_per_step - 1
        self._round_done = False
        if self.paused:
            slot.kept = True
            return
        slot.passes += 1
        if slot.passes == self.passes_per_step:
            self._start(slot, self._gradients.dense(slot.parameter), own=True)
        elif not slot.spent:
            slot.after_pass = self._gradients.version(slot.parameter)

    def finish(self) -> None:
        """The end of a backward: completes the round if one has begun. Raises the first error of any reduction."""
        if self._in_flight:
            if self.recorder is not None:
                self.recorder.backward_is_over()
            self.reduce_all()

    def reduce_all(self) -> None:
        """Starts what has not started, waits for all in the order in which they started, stores the results."""
        started = set(map(id, self._in_flight))
        first_error: Exception | None = None
        for slot in self._slots:
            if id(slot) not in started and self._gradients.wanted(slot.parameter):
                try:
                    self._fill(slot)
                except Exception as error:
                    # The peers wait for the rest of the round.
                    first_error = first_error or error
        in_flight, self._in_flight = self._in_flight, []
        for index, slot in enumerate(in_flight):
            try:
                self._complete(slot)
            except Exception as error:
                # The others are still being written to: their memory must not be touched before they are done as well.
                slot.operation = None
                first_error = first_error or error
            except BaseException:
                self._in_flight = in_flight[index:]
                raise
        self._has_begun = False
        if first_error is not None:
            raise first_error
        self._round_done = True
        if self.recorder is not None:
            self.recorder.reduced()
        contexts.note_gradients()
        if self.check is not None and in_flight:
            self.check.end(self.options)

    def complete_step(self) -> None:
        """Reduces the gradients that no backward has reduced, before the optimizer uses them.

        They were set by hand, or come from fewer passes than a step needs.
        """
        if self._in_flight or not self._round_done or any(map(self._was_replaced, self._slots)):
            self.reduce_all()

    def begin_step(self) -> None:
        """The gradients have been used, or cleared: counts start again."""
        for slot in self._slots:
            if self._round_done:
                # Changes since the round, such as clipping, were made on all ranks.
                slot.version += self._changes(slot) or 0
            slot.begin()
        self._round_done = self._has_begun = False

    def abandon(self) -> None:
        """Gives up what is in flight: its generation is over, and its results are not used."""
        in_flight, self._in_flight = self._in_flight, []
        for slot in in_flight:
            with contextlib.suppress(Exception):  # whatever it is, the results are not wanted
                if slot.operation is not None:
                    slot.operation.wait()  # returns at once, but only when the engine has let go of the memory
            slot.operation = None
        self.begin_step()

    def _was_cleared(self, slot: _Slot[P]) -> bool:
        """True if this pass has added to a gradient that was cleared after the round. Then the others begin anew."""
        changes = self._changes(slot)
        if changes is None:
            return True
        if changes <= 1:  # this pass
            return False
        # Cleared or only clipped, in place? The others tell, as this pass has not added to them yet. A lone one is
        # taken as cleared.
        others = [other for other in self._slots if other.spent and other is not slot and self._changes(other)]
        if any(self._gradients.any(self._gradients.dense(other.parameter)) for other in others):
            return False
        for other in others:
            other.begin()
        return True

    def _changes(self, slot: _Slot[P]) -> int | None:
        """How often the gradient that the last round left was changed since; None if it is not there any more."""
        current = self._gradients.current(slot.parameter)
        if current is None or current is not slot.reduced():
            return None
        return self._gradients.version(slot.parameter) - slot.version

    def _was_replaced(self, slot: _Slot[P]) -> bool:
        """True if the script has replaced the gradient, perhaps with one that it computed on this rank alone.

        All ranks run the same script, so all have replaced it. If it was made of the average, it is its own average.
        """
        current = self._gradients.current(slot.parameter)
        return self.reduces_again and current is not None and current is not slot.reduced()

    def _fill(self, slot: _Slot[P]) -> None:
        gradients, parameter = self._gradients, slot.parameter
        if gradients.current(parameter) is None:
            self._start(slot, gradients.nothing(parameter), own=False)
        elif self._is_reduced(slot):
            self._start(slot, gradients.zeros(parameter), own=False, added=True)
        else:
            if 0 < slot.passes < self.passes_per_step and gradients.version(parameter) != slot.after_pass:
                warn(
                    f"gradient {quoted(slot.name)} was changed, by clipping for example, before it was reduced: this "
                    f"step has {slot.passes} of {counted(self.passes_per_step, 'backward pass', 'backward passes')}\n"
                    "hint: call optimizer.synchronize() before clipping"
                )
            self._start(slot, gradients.dense(parameter), own=slot.kept or slot.passes > 0)

    def _is_reduced(self, slot: _Slot[P]) -> bool:
        """True if the gradient is still the one that the last round left."""
        changes = self._changes(slot)
        if changes is None or slot.kept:
            return False
        # In the round's own step clipping and unscaling change it, equally on all ranks. (`spent` last: see any().)
        return (slot.passes == 0 and changes == 0) or bool(slot.spent)

    def _start(self, slot: _Slot[P], gradient: T, own: bool, added: bool = False) -> None:
        if self.recorder is not None:
            self.recorder.started(slot.name, gradient)
        if self.check is not None:
            self._show(self.check, slot.name, gradient, own)
        slot.own = own
        slot.added = added
        slot.operation = self._start_reduction(gradient, slot.name)
        self._in_flight.append(slot)
        self._note("start", slot)

    def _show(self, check: StepCheck, name: str, gradient: T, own: bool) -> None:
        if not self._has_begun:
            self._has_begun = True
            check.begin()
        if own and check.is_due:
            gradients = self._gradients
            check.see(name, lambda: gradients.sample(gradient), lambda: gradients.is_finite(gradient))

    def _complete(self, slot: _Slot[P]) -> None:
        assert slot.operation is not None
        reduced = slot.operation.wait()
        slot.operation = None
        slot.kept = False
        if slot.added:
            self._gradients.add(slot.parameter, reduced)
        elif self._gradients.is_nothing(reduced):
            self._gradients.clear(slot.parameter)
            slot.reduced, slot.version = _nothing, 0
            self._note("done", slot)
            return
        else:
            self._gradients.store(slot.parameter, reduced)
        slot.reduced = weakref.ref(self._gradients.current(slot.parameter))
        slot.version = self._gradients.version(slot.parameter)
        slot.spent = slot.spent or slot.own or self._gradients.any(reduced)
        self._note("done", slot)

    def _note(self, event: str, slot: _Slot[P]) -> None:
        if self.trace is not None:
            self.trace.append((event, slot.name, time.monotonic_ns()))
