# SPDX-License-Identifier: Apache-2.0
"""A job whose ranks stay the same from start to end.

The ranks start when all hosts are ready. A policy decides how long the others may go on after a rank has ended
(policy.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from horovod.core.exceptions import explain_command
from horovod.launcher.host import processes
from horovod.launcher.host.command import is_one_program
from horovod.launcher.job.agent_link import AgentLink
from horovod.launcher.job.failure import (
    LATE,
    REJOINED,
    Cause,
    RankExit,
    describe_end,
    report,
    root_cause,
    waited_in_init,
    was_refused_by_a_peer,
)
from horovod.launcher.job.policy import EndTheJob
from horovod.launcher.job.roll_call import RollCall
from horovod.launcher.job.spec import Job
from horovod.launcher.job.supervision import Keep, Supervision
from horovod.world.network import at_port

__all__ = ["FixedJob", "how_it_ended"]

# A rank is stopped, noticed after the frozen timeout, and ended this much later with all others that still run.
_STOPPED_END_S = 3.0
_LOOK_AGAIN_S = 0.1  # for ranks that leave init: the rendezvous does not tell


@dataclasses.dataclass
class _Stopped:
    pid: int
    number: int
    time_s: float
    told: bool = False


class FixedJob(Supervision):
    """See Supervision."""

    def __init__(self, job: Job, secret: bytes, stack: contextlib.ExitStack, keep: Keep) -> None:
        self._hosts = list(dict.fromkeys(job.agent_of(one.rank) for one in job.ranks))
        super().__init__(job, self._hosts, secret, stack, keep)
        self.server.assign([dataclasses.asdict(one) for one in job.ranks])
        self._exits: list[RankExit] = []
        self._stopped: dict[int, _Stopped] = {}  # ranks that a signal has stopped, but not the whole job's suspension
        self._agent_lost: tuple[str, int] | None = None  # an agent that can do nothing more: why, and the exit code
        self._hosts_lost: dict[str, str] = {}  # hosts, of several, whose agents can do nothing more, and why
        self._words: set[str] = set()  # what the ranks were told of it
        self._terminate_at: float | None = None
        self._words_until = 0.0  # how long ranks in init may take longer

    def begin(self) -> None:
        self.agents.call(self._hosts)

    # the agents

    def on_roll_call(self, call: RollCall) -> None:
        problems = call.report()
        if problems is not None:
            self.could_not_start(problems, 1)
        elif self._hosts_lost:  # it was ready, and has gone while others were asked
            self.terminate()
        elif not self.asked:
            self.say(f"all hosts are ready; the ranks meet at {at_port(self.agents.address(call), self.server.port)}")
            self.agents.start(self._hosts, stay=False)

    def on_agent_lost(self, agent: AgentLink, why: str) -> None:
        if not agent.remote and why:
            self._lose_agent(f"the agent that holds the ranks of {self.job.called(agent.host)} {why}", 1)
        elif agent.remote or len(self.agents.links) > 1:
            self._lose_host(agent, why)

    def on_agent_told(self, agent: AgentLink, how: str, number: int) -> None:
        if self._agent_lost is None and not self.asked:
            whose = self.job.called(agent.host)
            why = f"the agent that holds the ranks of {whose} {how}; all ranks have been ended"
            hint = "\nhint: a batch system does so at its time limit, for example"
            self._agent_lost = (why + hint, 128 + number)
        self.terminate()

    def on_silence(self, agent: AgentLink, why: str) -> None:
        if agent.remote:
            self._lose_host(agent, why)
            return
        self._lose_agent(
            f"the agent that holds the ranks of host {agent.host} (process {agent.pid}) {why}; all ranks have been "
            "ended\nhint: to suspend a job, stop horovodrun itself (Ctrl-Z); HOROVOD_LOST_TIMEOUT_SECONDS=0 lets it "
            "wait for an agent",
            1,
        )

    # the ranks

    def on_started(self, agent: AgentLink, rank: int, pid: int) -> None:
        self.say(f"rank {rank} on host {self.job.ranks[rank].hostname}: pid {pid}")

    def on_not_started(self, agent: AgentLink, rank: int, error: str) -> None:
        self.could_not_start(f"rank {rank} could not be started: {error}", 127)

    def on_continued(self, rank: int) -> None:
        if not self.asked:  # the agent continues what it ends
            self._stopped.pop(rank, None)
        self.say(f"rank {rank} continues")

    def on_resumed(self) -> None:
        self._stopped.clear()  # all of them continue together

    def on_stop(self, agent: AgentLink, rank: int, pid: int, number: int) -> None:
        limit_s = self.job.frozen_timeout_s
        self._stopped.setdefault(rank, _Stopped(pid, number, time.monotonic()))
        then = f"the job ends if it is not continued within {limit_s:g} s" if limit_s else "the other ranks wait for it"
        several = len(self.agents.links) > 1
        host = self.job.ranks[rank].hostname
        where = f" on host {host}" if several else ""
        hint = f"on {host}: kill -CONT {pid}" if several else f"kill -CONT {pid}"
        stopped = f"rank {rank} (pid {pid}){where} was stopped by {processes.signal_name(number)}"
        self.warn(f"{stopped}; {then}\nhint: {hint}")

    def on_exit(self, agent: AgentLink, rank: int, code: int, memory: str) -> None:
        ended = RankExit(rank, code, time.monotonic(), self.asked, memory)
        self._exits.append(ended)
        if not self.asked:
            self._stopped.pop(rank, None)
        text = describe_end(ended, self.pids[rank])
        self.server.gone(rank, text)
        self.say(text)
        left_s = self.job.policy.seconds_left(ended, len(self.agents.links))
        if left_s is not None:
            self._end_in(left_s)

    def _lose_agent(self, why: str, exit_code: int) -> None:
        """Ends the job at once: without its agent, nothing on that host can be ended in order."""
        if self._agent_lost is None:
            self._agent_lost = (why, exit_code)
        self.done = True

    def _lose_host(self, agent: AgentLink, why: str) -> None:
        """One of several hosts can do nothing more. The ranks of the others get a moment to say what they lack."""
        self.agents.abandon(agent)
        if self._agent_lost is not None:
            return  # which is why
        why = why or how_it_ended(agent)
        self._hosts_lost[agent.host] = why
        ended = {one.rank for one in self._exits}
        for one in agent.ranks:
            if one.rank not in ended:
                text = f"rank {one.rank} was lost with its host: the agent of {agent.host} {why}"
                self._words.add(text)
                self.server.record_failure(one.rank, text)
                self.server.gone(one.rank, text)
        self._end_in(EndTheJob.SEVERAL_HOSTS_GRACE_S)

    # time

    def times(self) -> list[float]:
        if self.asked:
            return []
        times = [] if self._terminate_at is None else [self._terminate_at]
        if self.job.frozen_timeout_s:
            for one in self._stopped.values():
                times.append(one.time_s + (_STOPPED_END_S if one.told else 0.0) + self.job.frozen_timeout_s)
        return times

    def act_on_time(self, now: float) -> None:
        self._act_on_stops(now)
        if self._terminate_at is not None and now >= self._terminate_at:
            if now < self._words_until and self._is_one_in_init():
                self._terminate_at = now + _LOOK_AGAIN_S
            else:
                self.terminate()

    def _end_in(self, seconds: float) -> None:
        if self._terminate_at is None:
            self._terminate_at = time.monotonic() + seconds
            self._words_until = self._terminate_at + EndTheJob.LAST_WORDS_S

    def _is_one_in_init(self) -> bool:
        """True if a rank that runs is in init, or has failed there and not ended yet."""
        unable = self.server.in_init() - {one.rank for one in self._exits} - set(self._stopped)
        return any(one.rank in unable and self.job.agent_of(one.rank) not in self._hosts_lost for one in self.job.ranks)

    def _act_on_stops(self, now: float) -> None:
        """Ranks that wait in init are told at once.

        Ranks in a collective notice by themselves and end. A rank that is not in one is ended after a while.
        """
        if not self.job.frozen_timeout_s or self.asked:
            return
        for rank, one in self._stopped.items():
            late_s = now - one.time_s - self.job.frozen_timeout_s
            if late_s >= 0 and not one.told:
                one.told = True
                how = processes.signal_name(one.number)
                text = f"rank {rank} (process {one.pid}) was stopped by {how} and not continued"
                self.server.record_failure(rank, text)
                self.server.gone(rank, text)
            if late_s >= _STOPPED_END_S:
                self.terminate()

    # the end

    def ends(self) -> list[Callable[[], int | None]]:
        return [self._failed_end, self._agents_end]

    def _failed_end(self) -> int | None:
        stopped = {rank: one.number for rank, one in self._stopped.items()}
        record = self.server.failure()
        rejoined = self.server.rejoined(len(self.job.ranks))
        if rejoined is not None:
            record = {**rejoined, "code": REJOINED}
        if record is not None and record.get("rank") not in range(-1, len(self.job.ranks)):
            record = None  # not of this job's world, so it names none of its ranks
        record = self._or_late_rank(record)
        exits = [
            dataclasses.replace(one, blames_a_peer=was_refused_by_a_peer(self.outputs.last_lines(one.rank)))
            for one in self._exits
        ]
        cause = root_cause(exits, record, stopped)
        if self._hosts_lost and self._is_of_lost_host(cause):
            self.conclude_with(f"horovodrun: {self._lost_hosts_text(cause)}", lost=[*self._hosts_lost])
            return 1
        if cause is None:
            return None
        hostname = self.job.ranks[cause.rank].hostname
        last_lines = self.outputs.last_lines(cause.rank)
        self.conclude_with(report(cause, exits, hostname, last_lines, self.job.terms.init_timeout))
        return cause.exit_code

    def _or_late_rank(self, record: dict[str, Any] | None) -> dict[str, Any] | None:
        """If ranks waited in init until their time was over: a record of the first rank that they waited for."""
        ended = {one.rank for one in self._exits if not one.asked}
        waited = {rank: text for rank in sorted(ended) if (text := waited_in_init(self.outputs.last_lines(rank)))}
        here = {*self.server.entered(), *ended}
        late = [rank for rank in range(len(self.job.ranks)) if rank not in here]
        if not waited or not late or (record is not None and record.get("rank") not in waited):
            return record
        return {"rank": late[0], "code": LATE, "text": next(iter(waited.values()))}

    def _is_of_lost_host(self, cause: Cause | None) -> bool:
        """True if the job failed because a host was lost, and not before."""
        if cause is None:
            return True
        has_ended = any(one.rank == cause.rank for one in self._exits)
        return self.job.agent_of(cause.rank) in self._hosts_lost and not has_ended

    def _lost_hosts_text(self, cause: Cause | None) -> str:
        lines = [f"{self.job.called(host)} was lost: its agent {why}" for host, why in self._hosts_lost.items()]
        lines[-1] += "; all ranks have been ended"
        if cause is not None and cause.record and cause.record not in self._words:
            lines.append("  as the ranks saw it: " + cause.record.replace("\n", "\n    "))
        way = self.job.placement.start_with if self.job.joined is None else "what started its agent"
        lines.append(f"hint: did the machine, its network, or {way} fail? The host's own logs may tell")
        return "\n".join([*lines, explain_command("host-lost")])

    def _agents_end(self) -> int:
        """No rank has failed: either all of them ended by themselves, or an agent failed."""
        if self._agent_lost is not None:
            self.conclude_with(f"horovodrun: {self._agent_lost[0]}\n{explain_command('agent-lost')}")
            return self._agent_lost[1]
        ended = {one.rank for one in self._exits}
        for agent in self.agents.links:
            if all(one.rank in ended for one in agent.ranks):
                continue
            code = agent.exit_code
            how = f"was killed by {processes.signal_name(-code)}" if code < 0 else f"exited with code {code}"
            self.conclude_with(
                f"horovodrun: the agent that held the ranks of {self.job.called(agent.host)} {how}; all ranks have "
                f"been ended\n{explain_command('agent-lost')}"
            )
            return max(processes.shell_code(code), 1)
        is_alone = len(self.job.ranks) > 1 and not self.server.entered()
        if is_alone and (self.has_no_init or not is_one_program(self.job.command)):
            self.warn(_without_init(len(self.job.ranks), self.has_no_init))
        return 0


def _without_init(size: int, is_horovods: bool) -> str:
    """All ranks have ended well, and none has called init. `is_horovods`: one of them has imported horovod."""
    if is_horovods:
        return (
            f"no rank has called init: {size} processes have run alone, each as if there were no other\n"
            "hint: call hvd.init() at the beginning of the script"
        )
    return (
        "no rank has called init in this job, which is right for a command without Horovod\n"
        f"hint: if it does use Horovod, its {size} processes have run alone: call hvd.init(), and let no wrapper drop "
        "variables (no env -i; sudo -E, su -m; into a container pass all HOROVOD_* variables)"
    )


def how_it_ended(agent: AgentLink) -> str:
    """In words; for another machine from the exit code of what carried the agent's pipes."""
    code = agent.exit_code
    if code < 0 and not agent.remote:
        return f"was killed by {processes.signal_name(-code)}"
    if code < 0:
        return f"cannot be heard: {agent.way} was killed by {processes.signal_name(-code)}"
    if code == 255:
        return "cannot be heard: the connection broke"
    if code > 128:
        return f"was killed by {processes.signal_name(code - 128)}"
    return f"exited with code {code}"
