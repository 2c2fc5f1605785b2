# SPDX-License-Identifier: Apache-2.0
"""How long the other ranks of a job may go on after one has ended. Pure: an exit in, a decision out."""

from __future__ import annotations

from typing import Protocol

from horovod.launcher.job.failure import RankExit

__all__ = ["EndPolicy", "EndTheJob"]


class EndPolicy(Protocol):
    """Decides what the end of a rank means for the others."""

    def seconds_left(self, ended: RankExit, hosts: int) -> float | None:
        """How long the remaining ranks, of so many hosts, may go on after this exit; None: the job goes on."""


class EndTheJob:
    """A rank that fails ends the job. The others first get a moment to raise and handle their errors.

    Those in init cannot start any more, and end by themselves once they have said why: they get more time.
    """

    SURVIVOR_GRACE_S = 1.0
    LAST_WORDS_S = 30.0  # after the grace, if a rank in init has not ended; only one that hangs takes as long
    # Each host notices a silent one by its own clock: 1.5 s apart, or 2 s if the first rank of a host was stopped.
    SEVERAL_HOSTS_GRACE_S = 3.0

    def seconds_left(self, ended: RankExit, hosts: int) -> float | None:
        if ended.code == 0:
            return None
        return self.SURVIVOR_GRACE_S if hosts == 1 else self.SEVERAL_HOSTS_GRACE_S
