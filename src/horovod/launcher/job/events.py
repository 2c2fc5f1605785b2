# SPDX-License-Identifier: Apache-2.0
"""Events of a job's agents and ranks. fixed_job.py and elastic_job.py say what follows from them."""

from __future__ import annotations

import abc
from collections.abc import Callable

from horovod.launcher.job.agent_link import AgentLink
from horovod.launcher.job.roll_call import RollCall

__all__ = ["JobEvents"]


class JobEvents(abc.ABC):
    """On the thread of the job's loop (supervision.py). Nothing here blocks."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Calls the hosts."""

    @abc.abstractmethod
    def on_roll_call(self, call: RollCall) -> None:
        """Hosts have answered: see agents.Watcher."""

    @abc.abstractmethod
    def on_agent_lost(self, agent: AgentLink, why: str) -> None:
        """See agents.Watcher."""

    @abc.abstractmethod
    def on_silence(self, agent: AgentLink, why: str) -> None:
        """An agent has said nothing for too long."""

    @abc.abstractmethod
    def on_agent_told(self, agent: AgentLink, how: str, number: int) -> None:
        """An agent was told to end by something outside of this job, and ends its ranks."""

    @abc.abstractmethod
    def on_started(self, agent: AgentLink, rank: int, pid: int) -> None:
        """A rank has started."""

    @abc.abstractmethod
    def on_not_started(self, agent: AgentLink, rank: int, error: str) -> None:
        """A rank could not be started."""

    @abc.abstractmethod
    def on_exit(self, agent: AgentLink, rank: int, code: int, memory: str) -> None:
        """A rank has ended."""

    @abc.abstractmethod
    def on_stop(self, agent: AgentLink, rank: int, pid: int, number: int) -> None:
        """A signal has stopped a rank, but not the whole job's suspension."""

    @abc.abstractmethod
    def on_continued(self, rank: int) -> None:
        """It goes on."""

    def on_resumed(self) -> None:  # noqa: B027
        """All ranks go on after a suspension."""

    def on_own_pause(self, seconds: float) -> None:  # noqa: B027
        """This process was held up for so long, with all ranks or alone."""

    def act_on_time(self, now: float) -> None:  # noqa: B027
        """After each turn of the loop."""

    def times(self) -> list[float]:
        """When the loop has to turn although nothing happens."""
        return []

    @abc.abstractmethod
    def ends(self) -> list[Callable[[], int | None]]:
        """How the job may have ended, in this order: each returns the exit code if it did so."""
