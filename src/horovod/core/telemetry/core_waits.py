# SPDX-License-Identifier: Apache-2.0
"""How long the threads of this process run, and wait for a core, as Linux' scheduler counts it."""

from __future__ import annotations

import contextlib
import os
import threading

__all__ = ["LEAST_TOLD", "MOST_TRUSTED", "CoreWaits", "WaitShare", "too_busy"]

# Shares of the time in which a thread could run: above the first, a measurement warns; above the second, a forecast
# refuses it.
LEAST_TOLD, MOST_TRUSTED = 0.02, 0.1


def too_busy(share: float) -> str:
    """Words for what follows from a share above LEAST_TOLD."""
    return (
        "a forecast refuses this measurement"
        if share > MOST_TRUSTED
        else "a forecast from this measurement has a wider band"
    )


class CoreWaits:
    """The wait of the thread that waits longest. The calling thread is left out: sampling wakes it often."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int]] = {}
        self._sum_s = 0.0

    def now(self) -> float:
        """Seconds since the first call."""
        before, self._before = self._before, _by_thread()
        others = set(before) & set(self._before) - {threading.get_native_id()}
        waits = [self._before[thread][1] - before[thread][1] for thread in others]
        self._sum_s += max(waits, default=0) * 1e-9
        return round(self._sum_s, 3)


class WaitShare:
    """Of the time since it was made in which a thread could have run, the share in which it waited for a core."""

    def __init__(self) -> None:
        self._before = _by_thread()

    def now(self) -> float:
        """0 to 1, of all threads together; 0 where Linux does not count it."""
        ran, waited = 0, 0
        for thread, (runs, waits) in _by_thread().items():
            before = self._before.get(thread, (0, 0))
            ran, waited = ran + runs - before[0], waited + waits - before[1]
        return waited / (ran + waited) if ran + waited else 0.0


def _by_thread() -> dict[int, tuple[int, int]]:
    """Nanoseconds that each has run and waited."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in map(int, os.listdir("/proc/self/task")):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
                ran, waited, _ = map(int, file.read().split())
                found[thread] = ran, waited
    return found
