# SPDX-License-Identifier: Apache-2.0
"""Deadlines of tests: what renews them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support.patience import Patience, patiently, seconds_of_descendants, wait_until

LIMIT_S = 40.0


class Machine:
    """A clock, and processes that use a share of each of its seconds."""

    def __init__(self, **shares: float) -> None:
        self.now = 0.0
        self._shares = list(shares.values())

    def seconds(self) -> dict[int, float]:
        return {pid: share * self.now for pid, share in enumerate(self._shares)}

    def ends_s(self) -> float:
        """When the patience of 40 s with these processes is over."""
        patience = Patience(LIMIT_S, lambda: self.now, self.seconds)
        while self.now < 1000 and (left_s := patience.left_s()):
            self.now += left_s
        return self.now


def test_a_hang_is_found_in_time_and_whatever_works_has_more_time() -> None:
    assert Machine(waits=0.0, sends_signs_of_life=0.005, asks_every_10_ms=0.02).ends_s() == LIMIT_S
    assert Machine(waits=0.0, works_on_a_crowded_machine=0.06).ends_s() >= 1000


def test_many_that_wait_are_not_one_that_works() -> None:
    assert Machine(**{f"rank_{number}": 0.02 for number in range(24)}).ends_s() == LIMIT_S


def test_work_before_a_hang_counts_once() -> None:
    machine = Machine(works=1.0)
    machine.seconds = lambda: {1: min(machine.now, 10.0)}  # type: ignore[method-assign]
    assert LIMIT_S < machine.ends_s() <= 10 + LIMIT_S + LIMIT_S / 10


def test_processor_time_of_a_grandchild_is_seen() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as child:
        try:
            wait_until(
                lambda: any(used_s > 0.2 for pid, used_s in seconds_of_descendants().items() if pid != child.pid)
            )
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_what_is_in_vain_says_so() -> None:
    with pytest.raises(AssertionError, match="waited in vain: all that there is"):
        wait_until(lambda: False, lambda: "all that there is", limit_s=0.05)
    with subprocess.Popen(["sleep", "1000"]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            patiently(process.wait, limit_s=0.05)
        process.kill()
