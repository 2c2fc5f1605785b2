# SPDX-License-Identifier: Apache-2.0
"""The agents of a job, as horovodrun has them: real ones, on this machine."""

from __future__ import annotations

import os
import selectors
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.patience import Patience

from horovod.launcher.job import agents
from horovod.launcher.job.agent_link import AgentLink
from horovod.launcher.job.agents import AgentGroup
from horovod.launcher.job.roll_call import RollCall
from horovod.launcher.job.spec import Job


class Watcher:
    """Sends the agents of hosts away that are not ready."""

    def __init__(self) -> None:
        self.group: AgentGroup
        self.problems: list[str | None] = []

    def on_roll_call(self, call: RollCall) -> None:
        self.problems.append(call.report())
        self.group.dismiss(call.hosts[0])

    def on_event(self, agent: AgentLink, event: dict[str, Any]) -> None: ...

    def on_words(self, agent: AgentLink, words: bytes) -> None: ...

    def warn(self, text: str) -> None:
        assert "are two names of one machine" in text

    def on_agent_lost(self, agent: AgentLink, why: str) -> None:
        raise AssertionError(why)


def started(folder: Path) -> tuple[Watcher, selectors.BaseSelector, AgentGroup]:
    watcher, selector = Watcher(), selectors.DefaultSelector()
    job = Job(["no-such-command"], [], str(folder), dict(os.environ))
    rendezvous = SimpleNamespace(address="127.0.0.1", port=1)
    watcher.group = AgentGroup(job, selector, watcher, b"secret", rendezvous, [])
    return watcher, selector, watcher.group


def test_nothing_is_left_of_the_agent_of_a_host_that_is_not_ready(tmp_path: Path) -> None:
    watcher, selector, group = started(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for count in (1, 2):
        group.call(["localhost"])
        (agent,) = group.links
        while len(watcher.problems) < count:
            for key, _ in selector.select(10.0):
                key.data()
        assert "no-such-command" in (watcher.problems[-1] or "")
        assert not group.links and not selector.get_map() and not agent.is_open
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_so_many_agents_start_at_a_time_however_their_hosts_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elastic jobs call each host alone."""
    monkeypatch.setattr(agents, "_STARTING_AT_A_TIME", 2)
    watcher, selector, group = started(tmp_path)
    for number in range(4):
        group.call([f"localhost.{number}"])
        assert len(group.links) <= 2
    patience = Patience()
    while len(watcher.problems) < 4:
        assert patience.left_s()
        for key, _ in selector.select(1.0):
            key.data()
        assert len(group.links) <= 2
    assert group.all_are_done()
