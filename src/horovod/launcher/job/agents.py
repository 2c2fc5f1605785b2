# SPDX-License-Identifier: Apache-2.0
"""The agents of a job: starts them, asks whether their hosts are ready before a rank starts there, and gives orders.

Hosts are called together: either all of them are ready, or one report says what they lack.
"""

from __future__ import annotations

import collections
import os
import selectors
import time
from collections.abc import Sequence
from typing import Any, Protocol

from horovod.core.wording import of_system
from horovod.launcher.host.lines import LineError
from horovod.launcher.job.agent_link import AgentLink
from horovod.launcher.job.roll_call import RollCall
from horovod.launcher.job.spec import OF_THIS_MACHINE, Job
from horovod.launcher.options.hosts import packed
from horovod.settings import environment_of

__all__ = ["AgentGroup", "Rendezvous"]

# Each is a process of this machine and a connection to another one.
_STARTING_AT_A_TIME = 32
_END_S = 2.0  # for a process whose pipes have ended


class Rendezvous(Protocol):
    """Where the ranks meet, as far as agents are told of it."""

    address: str
    port: int


class Watcher(Protocol):
    """The object that the group tells of its agents."""

    def on_event(self, agent: AgentLink, event: dict[str, Any]) -> None:
        """An event of a rank."""

    def on_words(self, agent: AgentLink, words: bytes) -> None:
        """Output on stderr of a remote agent, or of the program that carries its pipes, after the job has started."""

    def on_agent_lost(self, agent: AgentLink, why: str) -> None:
        """It has ended without having ended its ranks, or has sent nonsense."""

    def on_roll_call(self, call: RollCall) -> None:
        """Every host that was called together has answered."""

    def warn(self, text: str) -> None:
        """Is told to the user."""


class AgentGroup:
    """One thread. Registers what it reads in `selector`, whose keys hold functions to call."""

    def __init__(
        self,
        job: Job,
        selector: selectors.BaseSelector,
        watcher: Watcher,
        secret: bytes,
        rendezvous: Rendezvous,
        addresses: list[str],
    ) -> None:
        """`addresses`: of the rendezvous, one of which all hosts must reach; empty: all agents are on this machine."""
        self.links: list[AgentLink] = []
        self._job = job
        self._selector = selector
        self._watcher = watcher
        self._secret = secret
        self._rendezvous = rendezvous
        self._addresses = addresses
        self._left: collections.deque[str] = collections.deque()
        self._calls: dict[str, RollCall] = {}  # by host, the last one
        self._machines: dict[str, str] = {}  # the first host that was found to be it

    def address(self, call: RollCall) -> str:
        """Where the ranks of these hosts meet the others, once the hosts are ready."""
        return call.address() or self._rendezvous.address

    def common_address(self, hosts: Sequence[str]) -> str | None:
        """The first of the rendezvous' addresses that all of these hosts reach, though they were called one by one."""
        reached = (one for one in self._addresses if all(self._calls[host].reaches(host, one) for host in hosts))
        return next(reached, None)

    def call(self, hosts: Sequence[str]) -> None:
        """Starts agents on these hosts; `on_roll_call` follows."""
        call = RollCall(hosts, self._addresses, self._job.called, self._job.terms)
        self._calls.update(dict.fromkeys(hosts, call))
        self._left.extend(hosts)
        self._start_next()

    def all_are_done(self) -> bool:
        return not self._left and all(agent.done for agent in self.links)

    def give_up_rest(self) -> None:
        """Starts no more agents, and ends those whose hosts have not answered: they have no rank to end."""
        self._left.clear()
        for agent in self._awaited():
            self.abandon(agent)

    def start(self, hosts: Sequence[str], stay: bool, slots: int | None = None) -> None:
        """Starts the ranks of these hosts. `stay`: their agents then take orders to start others, for so many slots."""
        for agent in self.links:
            if agent.host in hosts and not agent.started and not agent.done:
                agent.started = True
                self.order(agent, "start", **self._start_order(agent), stays=stay, slots=slots or len(agent.ranks))

    def on(self, host: str) -> AgentLink | None:
        """The agent of a host, if it can be given orders."""
        return next((agent for agent in self.links if agent.host == host and agent.started and not agent.done), None)

    def dismiss(self, host: str) -> None:
        """Ends the agents of a host that were not started: it cannot be used."""
        for agent in [agent for agent in self.links if agent.host == host and not agent.started]:
            self.drop(agent)

    def drop(self, agent: AgentLink) -> None:
        """Abandons an agent that has left nothing to end or to remove on this machine, and forgets it."""
        self.abandon(agent)
        if agent.words is not None:
            self._forget(agent.words)
        agent.clean_up()
        if agent in self.links:
            self.links.remove(agent)

    def order_all(self, name: str, **fields: Any) -> None:
        for agent in self.links:
            self.order(agent, name, **fields)

    def order(self, agent: AgentLink, name: str, **fields: Any) -> None:
        if not agent.order(name, **fields) and agent.orders not in self._selector.get_map():
            self._selector.register(agent.orders, selectors.EVENT_WRITE, lambda: self._flush(agent))

    def silent(self, now: float) -> list[AgentLink]:
        """Those that have said nothing for too long. Until its host is ready an agent is not expected to speak."""
        limit_s = self._job.agent_timeout_s
        return [agent for agent in self._speaking() if limit_s and now - agent.heard_s >= limit_s]

    def next_look(self) -> list[float]:
        """When silence or lateness has to be looked at, if nothing happens before."""
        limit_s = self._job.agent_timeout_s
        looks = [agent.heard_s + limit_s for agent in self._speaking() if limit_s]
        return looks + [agent.heard_s + self._job.start_timeout_s for agent in self._awaited()]

    def look_for_late(self, now: float) -> None:
        """Gives hosts up that are not ready in time."""
        for agent in self._awaited():
            if now - agent.heard_s >= self._job.start_timeout_s:
                self._calls[agent.host].is_late(agent.host, self._job.start_timeout_s, agent.said_first())
                self.abandon(agent)
                self._answered(agent.host)

    def listen_anew(self) -> None:
        """Silence so far was this process' own."""
        for agent in self.links:
            agent.heard_s = time.monotonic()

    def abandon(self, agent: AgentLink) -> None:
        """Nothing is expected of this agent any more; its process is killed unless its pipes have ended already."""
        if agent.is_open:
            self._forget(agent.events)
            self._forget(agent.orders)
        agent.end(_END_S)  # so that its exit code is its own
        self._on_words(agent)
        agent.done = True

    def end(self, grace_s: float) -> None:
        """Ends the processes that are left."""
        for agent in self.links:
            agent.end(grace_s)
            self._on_words(agent)

    def clean_up(self) -> None:
        for agent in self.links:
            agent.clean_up()

    def _awaited(self) -> list[AgentLink]:
        return [agent for agent in self.links if self._is_awaited(agent)]

    def _speaking(self) -> list[AgentLink]:
        return [agent for agent in self.links if not agent.done and not self._is_awaited(agent)]

    def _is_awaited(self, agent: AgentLink) -> bool:
        """True if its host has not answered yet. A host may have had another agent before."""
        return self._calls[agent.host].is_awaited(agent.host) and not agent.done and not agent.started

    def _start_next(self) -> None:
        """Starts the agents of the next hosts, unless too many are starting, of this call or another."""
        while self._left and len(self._awaited()) < _STARTING_AT_A_TIME:
            self._start_agent(self._left.popleft())

    def _start_agent(self, host: str) -> None:
        """A host for which none can be started has answered."""
        placement = self._job.placement_for(host)
        assert placement is not None, host  # the command line was checked
        ranks = [one for one in self._job.ranks if self._job.agent_of(one.rank) == host]
        try:
            agent = AgentLink(host, ranks, placement, self._job.environment, self._job.placement)
        except OSError as error:
            text, hint = f"got no agent: {of_system(error)}", "the limits of this machine or its memory may be reached"
            if isinstance(error, FileNotFoundError) and placement.program:
                text = f"cannot be reached: {placement.program} is not installed here, or not on PATH"
                hint = f"install {placement.program}, or choose another way with --start-with"
            self._calls[host].fails(host, text, hint)
            self._end_call(host)
            return
        self.links.append(agent)
        self._selector.register(agent.events, selectors.EVENT_READ, lambda: self._on_events(agent))
        if agent.words is not None:
            self._selector.register(agent.words, selectors.EVENT_READ, lambda: self._on_words(agent))

    def _flush(self, agent: AgentLink) -> None:
        if agent.is_open and agent.flush():
            self._selector.unregister(agent.orders)

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _on_events(self, agent: AgentLink) -> None:
        if not agent.is_open:
            return  # abandoned a moment ago, for what another one did
        try:
            events = agent.read()
        except LineError as error:
            self._forget(agent.events)
            self._watcher.on_agent_lost(agent, f"sent {error}")
            return
        for event in events:
            self._on_event(agent, event)
        if not agent.done or not agent.is_open:
            return
        self._forget(agent.events)
        call = self._calls[agent.host]
        if call.is_awaited(agent.host) and not agent.started:
            call.fails(agent.host, *agent.why_it_ended(_END_S))
            self._answered(agent.host)
        elif not agent.finished:
            self._watcher.on_agent_lost(agent, "")

    def _on_event(self, agent: AgentLink, event: dict[str, Any]) -> None:
        match event["event"]:
            case "hello":
                if self._calls[agent.host].greets(agent.host, event.get("version")):
                    self.order(agent, "prepare", **self._prepare_order())
                else:
                    self._answered(agent.host)
            case "prepared":
                self._calls[agent.host].answers(agent.host, event)
                self._warn_of_two_names(agent.host, event["machine"])
                self._answered(agent.host)
            case "done":
                agent.done = agent.finished = True
            case _:
                self._watcher.on_event(agent, event)

    def _warn_of_two_names(self, host: str, machine: str) -> None:
        other = self._machines.setdefault(machine, host)
        if self._job.joined is None and machine and other != host:
            self._watcher.warn(
                f"hosts {other} and {host} are two names of one machine, but count as two hosts: ranks of both have "
                "local rank 0, and use the same cores and GPUs\nhint: list the machine once, with all of its slots"
            )

    def _on_words(self, agent: AgentLink) -> None:
        if agent.words is None:
            return
        words = agent.read_words()
        if words == b"":
            self._forget(agent.words)
        elif words and agent.started:
            self._watcher.on_words(agent, words)

    def _answered(self, host: str) -> None:
        self._start_next()
        self._end_call(host)

    def _end_call(self, host: str) -> None:
        call = self._calls[host]
        if call.is_complete and not call.is_over:
            call.is_over = True
            self._watcher.on_roll_call(call)

    def _prepare_order(self) -> dict[str, Any]:
        job = self._job
        return {
            "secret": self._secret.hex() if job.joined is None else None,  # it came to a joined agent by another way
            "command": job.command[0],
            "path": job.environment.get("PATH", os.defpath if job.joined is None else None),
            "directory": job.directory,
            "network_interface": job.network_interface,
            "addresses": self._addresses,
            "port": self._rendezvous.port,
            "silence_s": job.agent_timeout_s,
            "temporary": job.environment.get("TMPDIR", ""),
            "hints": {"program": job.terms.program, "interface": job.terms.interface},
            "time_s": time.time() if job.elastic is not None else None,
        }

    def _start_order(self, agent: AgentLink) -> dict[str, Any]:
        job, address = self._job, self.address(self._calls[agent.host])
        meeting = environment_of(
            rendezvous_address=address,
            rendezvous_port=self._rendezvous.port,
            network_interface=job.network_interface or None,
            controller="gloo",
            cpu_operations="gloo",
        )
        elsewhere = OF_THIS_MACHINE - set(job.assigned) if agent.remote and job.joined is None else set()
        environment = {name: value for name, value in job.environment.items() if name not in elsewhere}
        if job.joined is not None:
            environment |= job.joined.environments.get(agent.host, {})
        return {
            "command": job.command,
            "directory": job.directory,
            "environment": {**environment, "PYTHONUNBUFFERED": "1", **meeting},
            "own_environment": sorted(elsewhere) if job.joined is None else None,
            "ranks": packed(agent.ranks),
            "grace_s": job.termination_grace_s,
            "address": address if agent.remote else None,
        }
