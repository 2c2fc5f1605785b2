# SPDX-License-Identifier: Apache-2.0
"""The wait that the driver of an elastic job is in: when to speak of it, and when it has taken too long. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.elastic.decide.job import Waits
from horovod.elastic.messages import Timer

__all__ = ["RunningWait"]

_TELL_AFTER_S = 10.0
_TELL_OF_COMMITS_AFTER_S = 300.0  # a script may have its reasons
_ASK_AFTER_S = 60.0  # but after half of the limit at the latest
_WHO_ENDS = {
    Timer.STRAGGLERS: "they are ended in {} (HOROVOD_ELASTIC_STRAGGLER_SECONDS)",
    Timer.ENDS: "the job ends in {} (HOROVOD_ELASTIC_STRAGGLER_SECONDS)",
    Timer.SLOTS: "the job ends in {} (--elastic-timeout)",
    Timer.STARTS: "the job ends in {} (--elastic-timeout)",
}
# Workers that start and fail again and again are one wait for enough of them; before the first world, too (follow).
_ONE_CLOCK = {Timer.STARTS: Timer.SLOTS}


class RunningWait:
    """At most one at a time. `now` is that of any clock that does not go back."""

    def __init__(self, limits_s: Mapping[Timer, float]) -> None:
        self._limits_s = limits_s
        self._wait: Waits | None = None
        self._clock: tuple[Timer | None, int] | None = None  # what is timed: what for, and in which generation
        self._until: float | None = None
        self._first_slots_until: float | None = None  # for enough slots for the first world, once some have lacked
        self._tell_at: float | None = None
        self._ask_at: float | None = None

    def follow(self, wait: Waits | None, generation: int, now: float) -> None:
        """Sets the wait that the driver is in now, None for none."""
        clock = None if wait is None else (_ONE_CLOCK.get(wait.timer, wait.timer) if wait.timer else None, generation)
        if wait is None or clock != self._clock:
            limit_s = None if wait is None or wait.timer is None else self._limits_s[wait.timer]
            self._until = None if limit_s is None else now + limit_s
            if wait is not None and wait.timer == Timer.SLOTS and not generation:
                self._until = self._first_slots_until = self._first_slots_until or self._until
            self._tell_at = None if wait is None else now + _tell_after_s(wait, generation)
            is_for_scripts = wait is not None and wait.timer in (Timer.STRAGGLERS, Timer.ENDS)
            self._ask_at = now + min(_ASK_AFTER_S, limit_s / 2) if is_for_scripts and limit_s else None
        self._wait, self._clock = wait, clock

    def times(self) -> list[float]:
        """When there is something to do."""
        return [at for at in (self._until, self._tell_at, self._ask_at) if at is not None]

    def news(self, now: float) -> str:
        """The line that reports a long wait, once; else empty."""
        if self._wait is None or self._tell_at is None or now < self._tell_at:
            return ""
        self._tell_at = None
        end = ""
        if self._until is not None and self._wait.timer in _WHO_ENDS:
            end = "; " + _WHO_ENDS[self._wait.timer].format(f"{self._until - now:.0f} s")
        return f"waiting for {self._wait.text}{end}"

    def is_to_ask(self, now: float) -> bool:
        """True, once, when the workers that are waited for should be asked where their scripts are."""
        if self._ask_at is None or now < self._ask_at:
            return False
        self._ask_at = None
        return True

    def run_out(self, now: float) -> Timer | None:
        """The timer that has run out, once. If it is still waited for afterwards, the time begins anew."""
        if self._wait is None or self._until is None or now < self._until:
            return None
        self._clock = self._until = self._first_slots_until = None
        return self._wait.timer

    def put_off(self, seconds: float) -> None:
        """All stood still for so long."""
        self._until = None if self._until is None else self._until + seconds
        self._first_slots_until = None if self._first_slots_until is None else self._first_slots_until + seconds
        self._tell_at = None if self._tell_at is None else self._tell_at + seconds
        self._ask_at = None if self._ask_at is None else self._ask_at + seconds


def _tell_after_s(wait: Waits, generation: int) -> float:
    return _TELL_OF_COMMITS_AFTER_S if wait.timer is None and generation else _TELL_AFTER_S
