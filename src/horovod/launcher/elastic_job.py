# SPDX-License-Identifier: Apache-2.0
"""A job whose workers come and go (elastic/): its agents, processes and hosts, and how it ends.

What happens to processes and hosts is told to the driver (elastic/driver.py), which decides. A host is used once its
agent has said that it is ready. What is called a rank elsewhere in the launcher is a worker here, by its number.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import selectors
import time
from collections.abc import Callable
from typing import Any

from horovod.core.exceptions import explain_command
from horovod.core.settings import environment_of
from horovod.core.topology import Identity
from horovod.core.wording import counted
from horovod.elastic.discovery import DiscoveryError, Hosts, Poller
from horovod.elastic.driver import Driver
from horovod.elastic.job import SUCCESS
from horovod.elastic.messages import Worker
from horovod.elastic.words import WordError, unpacked_said
from horovod.launcher import processes
from horovod.launcher.agent_link import AgentLink
from horovod.launcher.failure import RankExit, last_words
from horovod.launcher.fixed_job import how_it_ended
from horovod.launcher.job import ElasticPlan, Job
from horovod.launcher.roll_call import RollCall
from horovod.launcher.supervision import KeepWords, Supervision

__all__ = ["ElasticJob"]

_SEE_OFF_S = 3.0  # a worker that was told to stop may take this long, and the grace of horovodrun's signals
# A lost host's agent ends its workers by itself, a moment later than this one notices: then rank 0 is surely gone.
_FENCE_S = 2.0
_RETRY_S = 30.0  # a host that was not ready is asked again


@dataclasses.dataclass
class _Process:
    worker: Worker
    pid: int = 0
    stopped_at: float | None = None  # by a signal
    stopped_by: int = 0
    why_killed: str = ""

    def is_over(self, now: float, limit_s: float) -> bool:
        """Whether it has been stopped for too long, and nobody has done anything about it."""
        return self.stopped_at is not None and limit_s > 0 and now >= self.stopped_at + limit_s and not self.why_killed


class ElasticJob(Supervision):
    """See Supervision; and the driver's Hands."""

    def __init__(
        self, job: Job, plan: ElasticPlan, secret: bytes, stack: contextlib.ExitStack, keep_words: KeepWords
    ) -> None:
        self._plan = plan
        self._is_fixed = plan.discovery is None
        super().__init__(job, [host for host, _ in plan.hosts] if self._is_fixed else None, secret, stack, keep_words)
        self._stack = stack
        self._driver = Driver(plan.rules, plan.limits, self, self.server)
        self._processes: dict[int, _Process] = {}
        self._exits: dict[int, RankExit] = {}
        self._listed: dict[str, int] = {}  # what discovery says: hosts with their slots
        self._ready: set[str] = set()
        self._first: set[str] = set()  # hosts that the job begins with, and that have not answered
        self._ask_again: dict[str, float] = {}  # hosts that were not ready, and when they are asked again
        self._problems: list[str] = []
        self._fenced: list[tuple[float, int, str]] = []  # when workers of a lost host have surely ended, and how
        self._outcome: tuple[str, str] | None = None
        self._calls: collections.deque[Callable[[], None]] = collections.deque()  # from other threads, for this one
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, self._woken)
        stack.callback(os.close, self._waker)
        self.server.listen(lambda worker, word: self._soon(lambda: self._on_word(worker, word)))

    # the loop

    def begin(self) -> None:
        self.selector.register(self._woken, selectors.EVENT_READ, self._on_woken)
        hosts = self._plan.hosts
        if self._plan.discovery is not None:
            poller = Poller(
                self._plan.discovery,
                self._plan.discovery_s,
                lambda hosts: self._soon(lambda: self._on_hosts(hosts)),
                lambda text: self._soon(lambda: self.warn(f"warning: {text}")),
            )
            try:
                hosts = poller.start()
            except DiscoveryError as error:
                self.could_not_start(str(error), 1)
                return
            self._stack.callback(poller.stop)
        self._first = {host for host, _ in hosts}
        self._on_hosts(hosts)

    def _soon(self, call: Callable[[], None]) -> None:
        """From any thread."""
        self._calls.append(call)
        with contextlib.suppress(BlockingIOError):  # it is about to wake in any case
            os.write(self._waker, b"x")

    def _on_woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 1 << 16)
        while self._calls:
            self._calls.popleft()()

    def is_over(self) -> bool:
        if self._outcome is not None and not self._processes:
            self.terminate()
        return (self.asked or self._outcome is not None) and self.agents.all_are_done()

    def times(self) -> list[float]:
        times = [*self._ask_again.values(), *(at for at, _, _ in self._fenced)]
        limit_s = self.job.frozen_timeout_s
        times += [
            one.stopped_at + limit_s
            for one in self._processes.values()
            if one.stopped_at is not None and limit_s and not one.why_killed
        ]
        driver = self._driver.next_time()
        return times + ([] if driver is None else [driver])

    def act_on_time(self, now: float) -> None:
        if self.asked:
            return
        for host in [host for host, at in self._ask_again.items() if at <= now]:
            del self._ask_again[host]
            self.agents.call([host])
        fenced, self._fenced = self._fenced, [one for one in self._fenced if one[0] > now]
        for at, number, how in fenced:
            if at <= now:
                self._driver.worker_ended(number, how, well=False)
        for one in self._processes.values():
            if one.is_over(now, self.job.frozen_timeout_s):
                one.why_killed = f"was stopped by {processes.signal_name(one.stopped_by)} and not continued"
                self.kill(one.worker.number)
        self._driver.on_time()

    # hosts

    def _on_hosts(self, hosts: Hosts) -> None:
        self._listed = dict(hosts)
        for host in self._listed:
            if self.agents.on(host) is None and host not in self._ask_again and not self.asked:
                self.agents.call([host])
        self._list_hosts()

    def on_roll_call(self, call: RollCall) -> None:
        problems = call.report()
        (host,) = call.hosts
        self._first.discard(host)
        if self.asked:
            return
        if problems is None:
            self.agents.start(call.hosts, stay=True)
            self._ready.add(host)
        else:
            self._problems.append(problems)
            self._ready.discard(host)
            if not self._is_fixed:
                self.warn(f"{problems}\nhint: it is asked again in {_RETRY_S:g} s")
                self._ask_again[host] = time.monotonic() + _RETRY_S
        self._list_hosts()
        self._end_if_too_few()

    def _end_if_too_few(self) -> None:
        """Hosts that nobody will ever add: whatever is lacking now is lacking for good."""
        if not self._is_fixed or not self._problems or len(self._ready) + len(self._problems) < len(self._listed):
            return
        if sum(self._listed[host] for host in self._ready) < self._plan.rules.np:
            self.could_not_start("\n".join(self._problems), 1)

    def _list_hosts(self) -> None:
        """The first ones together, so that ranks follow their order."""
        if not self._first and not self.asked:
            self._driver.list_hosts([item for item in self._listed.items() if item[0] in self._ready])

    def on_agent_lost(self, agent: AgentLink, why: str) -> None:
        self._lose_host(agent, why)

    def on_silence(self, agent: AgentLink, why: str) -> None:
        self._lose_host(agent, why)

    def _lose_host(self, agent: AgentLink, why: str) -> None:
        """Its workers end with it; those that this machine cannot see end a moment later, by their agent."""
        self.agents.abandon(agent)
        why = why or how_it_ended(agent)
        self._ready.discard(agent.host)
        if self.asked:
            return
        if not self._is_fixed and agent.host in self._listed:
            self._ask_again[agent.host] = time.monotonic() + _RETRY_S
        ended_at = time.monotonic() + (_FENCE_S if agent.remote and self._has_root(agent.host) else 0.0)
        for one in [one for one in self._processes.values() if one.worker.host == agent.host]:
            del self._processes[one.worker.number]
            self._fenced.append((ended_at, one.worker.number, f"was lost with its host: the agent there {why}"))
        self.warn(f"host {agent.host} was lost: its agent {why}")
        self._list_hosts()

    def _has_root(self, host: str) -> bool:
        record = self._driver.job.record
        return record is not None and record.members[0].host == host

    # workers

    def on_started(self, agent: AgentLink, rank: int, pid: int) -> None:
        if rank in self._processes:
            self._processes[rank].pid = pid
        self.say(f"worker {rank} on host {agent.host}: pid {pid}")

    def on_not_started(self, agent: AgentLink, rank: int, error: str) -> None:
        self._ended(rank, f"could not be started: {error}", well=False)

    def on_exit(self, agent: AgentLink, rank: int, code: int, memory: str) -> None:
        one = self._processes.get(rank)
        self._exits[rank] = RankExit(rank, code, time.monotonic(), self.asked, memory)
        how = f"was killed by {processes.signal_name(-code)}" if code < 0 else f"exited with code {code}"
        if one is not None and one.why_killed:
            how = one.why_killed
        self.say(f"worker {rank} (process {self.pids.get(rank, 0)}) {how}")
        self._ended(rank, how, well=code == 0)

    def _ended(self, number: int, how: str, well: bool) -> None:
        self._processes.pop(number, None)
        if not self.asked:
            self._driver.worker_ended(number, how, well)

    def on_stop(self, agent: AgentLink, rank: int, pid: int, number: int) -> None:
        one = self._processes.get(rank)
        if one is None or one.stopped_at is not None:
            return
        one.stopped_at, one.stopped_by = time.monotonic(), number
        limit_s = self.job.frozen_timeout_s
        then = f"it is replaced if it is not continued within {limit_s:g} s" if limit_s else "the others wait for it"
        self.warn(
            f"worker {rank} (pid {pid}) on host {agent.host} was stopped by {processes.signal_name(number)}; {then}\n"
            f"hint: on {agent.host}: kill -CONT {pid}"
        )

    def on_continued(self, rank: int) -> None:
        if rank in self._processes and not self.asked:
            self._processes[rank].stopped_at = None
        self.say(f"worker {rank} continues")

    def on_resumed(self) -> None:
        for one in self._processes.values():
            one.stopped_at = None

    def _on_word(self, worker: int, word: Any) -> None:
        try:
            self._driver.happens(unpacked_said(word, worker))
        except WordError as error:
            self.warn(f"worker {worker} said what is not understood: {error}")

    # the driver's hands

    def start(self, worker: Worker, planned: Identity, joins: bool) -> None:
        agent = self.agents.on(worker.host)
        self.outputs.add(worker.number)
        if agent is None:  # it was lost a moment ago; the next listing says so
            self._fenced.append((time.monotonic(), worker.number, "could not be started: its host was lost"))
            return
        self._processes[worker.number] = _Process(worker)
        identity = dataclasses.asdict(planned)
        environment = environment_of(
            **identity, hostname=worker.host, elastic=True, worker=worker.number, joins=joins or None
        )
        self.agents.order(agent, "start_rank", rank=worker.number, environment=environment)

    def kill(self, number: int) -> None:
        self._end_worker(number, 0.0)

    def see_off(self, number: int) -> None:
        self._end_worker(number, _SEE_OFF_S + self.job.termination_grace_s)

    def _end_worker(self, number: int, grace_s: float) -> None:
        one = self._processes.get(number)
        agent = None if one is None else self.agents.on(one.worker.host)
        if agent is not None:
            self.agents.order(agent, "end_rank", rank=number, grace_s=grace_s)

    def over(self, outcome: str, text: str) -> None:
        self._outcome = outcome, text
        if outcome != SUCCESS:
            self.terminate()

    def tell(self, text: str) -> None:
        self.warn(text)

    # the end

    def ends(self) -> list[Callable[[], int | None]]:
        return [self._elastic_end]

    def _elastic_end(self) -> int | None:
        assert self._outcome is not None
        outcome, text = self._outcome
        losses = self._driver.losses
        survived = f"{counted(len(losses), 'loss', 'losses')} survived: {'; '.join(losses)}" if losses else ""
        if outcome == SUCCESS:
            late = next((one for one in self._exits.values() if one.code != 0 and self._has_finished(one.rank)), None)
            if survived:
                self.warn(survived)
            if late is None:
                return 0
            self.conclude_with(
                "\n".join(
                    [
                        *last_words(late.rank, late, self.outputs.last_lines(late.rank)),
                        f"horovodrun: worker {late.rank} exited with code {late.code} after the training had ended",
                    ]
                )
            )
            return late.code if late.code > 0 else 128 - late.code
        failed = next((one for one in reversed(self._exits.values()) if one.failed), None)
        lines = [] if failed is None else last_words(failed.rank, failed, self.outputs.last_lines(failed.rank))
        lines += [f"horovodrun: {survived}"] if survived else []
        lines.append(f"horovodrun: the elastic job has ended: {text}")
        lines.append(explain_command(outcome))
        self.conclude_with("\n".join(lines))
        return 1

    def _has_finished(self, number: int) -> bool:
        return number in self._driver.job.finished
