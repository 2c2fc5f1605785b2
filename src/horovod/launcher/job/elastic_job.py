# SPDX-License-Identifier: Apache-2.0
"""A job whose workers come and go (elastic/): its agents, processes and hosts, and how it ends.

What happens to processes and hosts is told to the driver (elastic/drive/driver.py), which decides. A host is used once
its agent has said that it is ready. What is called a rank elsewhere in the launcher is a worker here, by its number.
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
from horovod.core.wording import counted
from horovod.elastic.decide.job import SCRIPT, SUCCESS
from horovod.elastic.drive.discovery import DiscoveryError, Hosts, Poller
from horovod.elastic.drive.driver import Driver
from horovod.elastic.messages import Worker
from horovod.elastic.words import WordError, unpacked_report
from horovod.launcher.host import processes
from horovod.launcher.host.memory import IN_CGROUP
from horovod.launcher.job.agent_link import AgentLink
from horovod.launcher.job.failure import RankExit, last_exception, last_words
from horovod.launcher.job.fixed_job import how_it_ended
from horovod.launcher.job.output import Outputs
from horovod.launcher.job.roll_call import RollCall
from horovod.launcher.job.spec import ElasticPlan, Job
from horovod.launcher.job.supervision import Keep, Supervision
from horovod.settings import environment_of
from horovod.world.topology import Identity

__all__ = ["ElasticJob"]

_SEE_OFF_S = 3.0  # a worker that was told to stop may take this long, and the grace of horovodrun's signals
# A lost host's agent ends its workers by itself, a moment later than this one notices: then rank 0 is surely gone.
_FENCE_S = 2.0
_RETRY_S = 30.0  # a host that was not ready is asked again
_KEPT_EXITS = 16  # of so many workers it is known how they ended, and their last lines
_TELL_LEFT_S = 10.0  # processes that are still there so long after the end of training are spoken of
_LONGEST_ERROR = 200  # characters


@dataclasses.dataclass
class _Process:
    worker: Worker
    agent: AgentLink
    pid: int = 0
    stopped_at: float | None = None  # by a signal
    stopped_by: int = 0
    why_killed: str = ""

    def is_over(self, now: float, limit_s: float) -> bool:
        """True if it has been stopped for too long, and has not been killed for that yet."""
        return self.stopped_at is not None and limit_s > 0 and now >= self.stopped_at + limit_s and not self.why_killed


@dataclasses.dataclass
class _Host:
    """A host that is listed, or whose agent is still there."""

    slots: int = 0  # 0: it is not listed
    is_called: bool = False  # and has not answered yet
    is_first: bool = False  # called, for the job's beginning
    is_ready: bool = False
    is_given_up: bool = False  # its agent was lost; it is not asked again
    ask_at: float | None = None  # when it is asked again
    losses: int = 0  # of its agent
    problems: str = ""  # why it is not ready
    said: str = ""  # the problems last printed

    @property
    def is_usable(self) -> bool:
        return self.is_ready and self.slots > 0

    def forget(self) -> None:
        """It is not listed any more. If it comes back, it is a new one, but perhaps its agent is still there."""
        self.slots, self.is_given_up, self.ask_at, self.losses, self.problems, self.said = 0, False, None, 0, "", ""


class ElasticJob(Supervision):
    """See Supervision, and LauncherPort in elastic/drive/driver.py."""

    def __init__(self, job: Job, plan: ElasticPlan, secret: bytes, stack: contextlib.ExitStack, keep: Keep) -> None:
        self._plan = plan
        self._is_fixed = plan.discovery is None
        # These close after the rendezvous, whose thread writes there.
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, self._woken)
        stack.callback(os.close, self._waker)
        super().__init__(job, [host for host, _ in plan.hosts] if self._is_fixed else None, secret, stack, keep)
        self._stack = stack
        self._driver = Driver(plan.rules, plan.limits, self, self.server)
        self._processes: dict[int, _Process] = {}
        self._exits: dict[int, RankExit] = {}
        self._hosts: dict[str, _Host] = {}  # first those that are listed, as they are listed
        self._fenced: list[tuple[float, int, str]] = []  # when workers of a lost host have surely ended, and how
        self._outcome: tuple[str, str] | None = None
        self._tell_left_at: float | None = None
        self._calls: collections.deque[Callable[[], None]] = collections.deque()  # from other threads, for this one
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
        self._hosts = {name: _Host(is_first=True) for name, _ in hosts}
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
        if self.asked:
            return []
        times = [host.ask_at for host in self._hosts.values() if host.ask_at is not None]
        times += [at for at, _, _ in self._fenced]
        times += [] if self._tell_left_at is None else [self._tell_left_at]
        limit_s = self.job.frozen_timeout_s
        times += [
            one.stopped_at + limit_s
            for one in self._processes.values()
            if one.stopped_at is not None and limit_s and not one.why_killed and not self._is_alone(one.worker.number)
        ]
        driver = self._driver.next_time()
        return times + ([] if driver is None else [driver])

    def act_on_time(self, now: float) -> None:
        if self.asked:
            return
        for name, host in self._hosts.items():
            if host.ask_at is not None and host.ask_at <= now:
                host.ask_at = None
                self._call(name)
        fenced, self._fenced = self._fenced, [one for one in self._fenced if one[0] > now]
        for at, number, how in fenced:
            if at <= now:
                self._driver.worker_ended(number, how, well=False)
        for one in self._processes.values():
            if one.is_over(now, self.job.frozen_timeout_s) and not self._is_alone(one.worker.number):
                signal_name = processes.signal_name(one.stopped_by)
                self.kill(one.worker.number, f"was stopped by {signal_name} and not continued")
        self._driver.on_time()
        if self._tell_left_at is not None and self._tell_left_at <= now:
            self._tell_left_at = None
            left = ", ".join(f"{one.worker.number} (pid {one.pid})" for one in self._processes.values())
            self.warn(
                f"the training has ended; waiting for the end of the processes of workers {left}\n"
                "hint: a non-daemon thread, or code after the training, keeps a process alive"
            )

    def on_own_pause(self, seconds: float) -> None:
        self._driver.put_off(seconds)

    # hosts

    def _on_hosts(self, hosts: Hosts) -> None:
        known = self._hosts
        self._hosts = {name: known.pop(name, _Host()) for name, _ in hosts}
        for name, slots in hosts:
            self._hosts[name].slots = slots
        for name, host in known.items():
            host.forget()
            if host.is_called or host.is_ready:
                self._hosts[name] = host
        for name, _ in hosts:
            if self._hosts[name].ask_at is None and not self._hosts[name].is_given_up:
                self._call(name)
        self._list_hosts()

    def _call(self, name: str) -> None:
        """At most one agent of a host at a time."""
        host = self._hosts[name]
        if host.slots and not host.is_called and self.agents.on(name) is None and not self.asked:
            host.is_called = True
            self.agents.call([name])

    def on_roll_call(self, call: RollCall) -> None:
        problems = call.report("it gets no workers")
        (name,) = call.hosts
        host = self._hosts[name]
        host.is_called = host.is_first = False
        if self.asked:
            return
        host.is_ready = problems is None
        host.problems = problems or ""
        if problems is None:
            self.agents.start(call.hosts, stay=True, slots=host.slots)
            host.said = ""
        else:
            self.agents.dismiss(name)
            if host.slots and (not self._is_fixed or self._plan.rules.cooldown):
                host.ask_at = time.monotonic() + _RETRY_S
        self._end_if_too_few()
        self._warn_of_problems()
        self._list_hosts()

    def _end_if_too_few(self) -> None:
        """Ends a job of fixed hosts if too few are ready at the beginning: no host is added later."""
        hosts = self._hosts.values()
        problems = [host.problems for host in hosts if host.problems]
        if not self._is_fixed or self._awaits_first() or not problems or self._driver.job.started:
            return
        if sum(host.slots for host in hosts if host.is_ready) < self._plan.rules.np:
            self.could_not_start("\n".join(["too few hosts are ready; nothing was started", *problems]), 1)

    def _warn_of_problems(self) -> None:
        """Once, unless they are others. Those of fixed hosts may be why the job ends, until all have answered."""
        if self.asked or (self._is_fixed and self._awaits_first()):
            return
        for host in self._hosts.values():
            if host.problems and host.said != host.problems:
                host.said = host.problems
                again = "" if host.ask_at is None else f"\nhint: it is asked again every {_RETRY_S:g} s"
                self.warn(f"{host.problems}{again}")

    def _awaits_first(self) -> bool:
        return any(host.is_first for host in self._hosts.values())

    def _list_hosts(self) -> None:
        """The first ones together, so that ranks follow their order."""
        if not self._awaits_first() and not self.asked:
            self._driver.list_hosts([(name, host.slots) for name, host in self._hosts.items() if host.is_usable])

    def on_agent_lost(self, agent: AgentLink, why: str) -> None:
        self._lose_host(agent, why)

    def on_agent_told(self, agent: AgentLink, how: str, number: int) -> None:
        """Its workers end in order, and nothing new is started there."""
        if self.asked:
            return
        for one in self._processes.values():
            if one.agent is agent and not one.why_killed:
                one.why_killed = f"was lost with its host: the agent there {how}"
        self._forget_host(agent, how)

    def on_silence(self, agent: AgentLink, why: str) -> None:
        self._lose_host(agent, why)

    def _lose_host(self, agent: AgentLink, why: str) -> None:
        """Its workers end with it; those that this machine cannot see end a moment later, by their agent."""
        if agent.remote:
            self.agents.drop(agent)
        else:
            self.agents.abandon(agent)  # what it has left is ended and removed at the end
        why = why or how_it_ended(agent)
        if self.asked:
            return
        ended_at = time.monotonic() + (_FENCE_S if agent.remote and self._has_root(agent.host) else 0.0)
        for one in [one for one in self._processes.values() if one.agent is agent]:
            del self._processes[one.worker.number]
            how = one.why_killed or f"was lost with its host: the agent there {why}"
            self._fenced.append((ended_at, one.worker.number, how))
        if agent.host not in self._hosts or self._hosts[agent.host].is_ready:  # else it was told to end a moment ago
            self._forget_host(agent, why)

    def _forget_host(self, agent: AgentLink, why: str) -> None:
        if agent.host in self._hosts:
            self._hosts[agent.host].is_ready = False
        self.warn(f"host {agent.host} was lost: its agent {why}{self._after_loss(agent.host)}")
        self._list_hosts()

    def _after_loss(self, name: str) -> str:
        """Decides when the host is asked again, and says so: it has failed. But the last one may come back."""
        host = self._hosts.get(name)
        if host is None or not host.slots:
            return ""
        host.losses += 1
        others = any(other.is_usable for other in self._hosts.values())
        seconds = self._plan.limits.cooldown(host.losses) if others else _RETRY_S
        if seconds is None:
            host.is_given_up = True
            return "; it is no longer used\nhint: --blacklist-cooldown-range lets hosts come back"
        host.ask_at = time.monotonic() + seconds
        return f"; it is asked again in {seconds:.0f} s"

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
        asked = self.asked or rank in self._driver.job.told
        ended = self._exits[rank] = RankExit(rank, code, time.monotonic(), asked, memory)
        how = ended.how
        if code < 0 and memory == IN_CGROUP:
            how += ": out of memory"
        if one is not None and one.why_killed and code < 0:
            how = one.why_killed
        self.say(f"worker {rank} (process {self.pids.get(rank, 0)}) {how}")
        for old in list(self._exits)[:-_KEPT_EXITS]:
            del self._exits[old]
            self.pids.pop(old, None)
            self.outputs.forget(old)
        error = last_exception(self.outputs.last_lines(rank), time.monotonic()) if code > 0 else ""
        self._ended(rank, how, well=code == 0, error=error[:_LONGEST_ERROR])

    def _ended(self, number: int, how: str, well: bool, error: str = "") -> None:
        self._processes.pop(number, None)
        if not self.asked:
            self._driver.worker_ended(number, how, well, error)

    def on_stop(self, agent: AgentLink, rank: int, pid: int, number: int) -> None:
        one = self._processes.get(rank)
        if one is None or one.stopped_at is not None:
            return
        one.stopped_at, one.stopped_by = time.monotonic(), number
        limit_s = 0.0 if self._is_alone(rank) else self.job.frozen_timeout_s
        then = f"it is replaced if it is not continued within {limit_s:g} s" if limit_s else "the job waits for it"
        self.warn(
            f"worker {rank} (pid {pid}) on host {agent.host} was stopped by {processes.signal_name(number)}; {then}\n"
            f"hint: on {agent.host}: kill -CONT {pid}"
        )

    def _is_alone(self, number: int) -> bool:
        """True if only this worker has the state of the training: without the worker, the state would be lost."""
        members = self._driver.job.members
        others = [one for one in self._processes.values() if one.worker.number in members and not one.why_killed]
        return number in members and all(one.worker.number == number or one.stopped_at is not None for one in others)

    def on_continued(self, rank: int) -> None:
        if rank in self._processes and not self.asked:
            # While all are stopped, no time runs out. It begins when one of them goes on.
            for one in self._processes.values():
                if one.stopped_at is not None and self._is_alone(one.worker.number):
                    one.stopped_at = time.monotonic()
            self._processes[rank].stopped_at = None
        self.say(f"worker {rank} continues")

    def on_resumed(self) -> None:
        for one in self._processes.values():
            one.stopped_at = None

    def _on_word(self, worker: int, word: Any) -> None:
        try:
            self._driver.reports(unpacked_report(word, worker))
        except WordError as error:
            self.warn(f"worker {worker} sent a message that cannot be read: {error}")

    # LauncherPort

    def start(self, worker: Worker, planned: Identity, joins: bool) -> None:
        agent = self.agents.on(worker.host)
        self.outputs.add(worker.number)
        if agent is None:  # it was lost a moment ago; the next listing says so
            self._fenced.append((time.monotonic(), worker.number, "could not be started: its host was lost"))
            return
        self._processes[worker.number] = _Process(worker, agent)
        identity = dataclasses.asdict(planned)
        address = self.agents.common_address([name for name, host in self._hosts.items() if host.is_ready])
        environment = environment_of(
            **identity,
            hostname=worker.host,
            elastic=True,
            worker=worker.number,
            joins=joins or None,
            rendezvous_address=address,
        )
        self.agents.order(agent, "start_rank", rank=worker.number, environment=environment)

    def kill(self, number: int, why: str) -> None:
        if number in self._processes:
            self._processes[number].why_killed = why
        self._end_worker(number, 0.0)

    def see_off(self, number: int) -> None:
        self._end_worker(number, _SEE_OFF_S + self.job.termination_grace_s)

    def _end_worker(self, number: int, grace_s: float) -> None:
        one = self._processes.get(number)
        if one is not None:
            self.agents.order(one.agent, "end_rank", rank=number, grace_s=grace_s)

    def over(self, outcome: str, text: str) -> None:
        self._outcome = outcome, text
        self._tell_left_at = time.monotonic() + _TELL_LEFT_S if outcome == SUCCESS else None
        # A script that has raised may still print where. All are being seen off by now.
        if outcome not in (SUCCESS, SCRIPT):
            self.terminate()

    def tell(self, text: str) -> None:
        self.warn(text)

    # the end

    def ends(self) -> list[Callable[[], int | None]]:
        return [self._elastic_end]

    def _elastic_end(self) -> int | None:
        assert self._outcome is not None
        outcome, text = self._outcome
        survived = _losses(self._driver, "survived" if outcome == SUCCESS else "earlier")
        if outcome == SUCCESS:
            if survived:
                self.warn(survived)
            return self._end_after_training()
        culprits = _culprits(self._driver, self._exits, outcome, text)
        lines = _last_words(self.outputs, culprits[0]) if culprits else []
        lines += [f"horovodrun: {survived}"] if survived else []
        lines.append(f"horovodrun: the elastic job has ended: {text}")
        lines.append(explain_command(outcome))
        self.conclude_with("\n".join(lines), workers=[one.rank for one in culprits])
        # Those that have raised the same exception were told to stop while they ended by themselves, with their codes.
        return next((one.exit_code for one in culprits if one.failed or one.code > 0), 1)

    def _end_after_training(self) -> int:
        finished = self._driver.job.finished
        late = next((one for one in self._exits.values() if one.code != 0 and one.rank in finished), None)
        lines = []
        if late is not None:
            happened = f"worker {late.rank} {late.how} after the training had ended"
            lines = [*_last_words(self.outputs, late), f"horovodrun: {happened}", explain_command("rank-failed")]
        self.conclude_with("\n".join(lines), has_trained=True, workers=sorted(finished))
        return 0 if late is None else late.exit_code


def _losses(driver: Driver, when: str) -> str:
    """The losses after which the job went on, the last of them in words."""
    count, losses = driver.lost, driver.losses
    last = f", the last {len(losses)}" if count > len(losses) else ""
    return f"{counted(count, 'loss', 'losses')} {when}{last}: {'; '.join(losses)}" if count else ""


def _culprits(driver: Driver, exits: dict[int, RankExit], outcome: str, text: str) -> list[RankExit]:
    """The workers whose ends are why the job has ended, the one to show first. None whose end it has survived."""
    if outcome == SCRIPT:
        raisers = [number for number, _, error in driver.job.raised if error in text]
        return [exits[number] for number in raisers if number in exits]
    return [one for one in reversed(exits.values()) if one.failed and one.time_s >= driver.led_s]


def _last_words(outputs: Outputs, one: RankExit) -> list[str]:
    return last_words(one.rank, one, outputs.last_lines(one.rank), "worker")
