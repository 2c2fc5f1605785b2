# SPDX-License-Identifier: Apache-2.0
"""One job from start to end, as horovodrun sees it: rendezvous, agents, events, signals, and the last words.

The supervisor is one loop over what can happen: an agent says something, a signal arrives, a time is reached. It runs a
group of agents, one for each host (agents.py, agent_link.py, placement/). The ranks start when all hosts are ready. The
job ends in this order: `_terminate` asks the agents to end their ranks, each agent says `done` when no process of its
ranks is left, and `_conclude` names the cause. A policy decides how long the others may go on after a rank has ended
(policy.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from horovod.core.exceptions import explain_command
from horovod.core.network import interface_address, own_addresses
from horovod.core.rendezvous_server import RendezvousServer
from horovod.core.secret import new_secret
from horovod.launcher import processes
from horovod.launcher.agent_link import AgentLink
from horovod.launcher.agents import AgentGroup
from horovod.launcher.failure import (
    LATE,
    Cause,
    RankExit,
    describe_end,
    report,
    root_cause,
    waited_in_init,
    was_refused_by_a_peer,
)
from horovod.launcher.job import Job
from horovod.launcher.output import OutputError, Outputs
from horovod.launcher.placement import placement_for
from horovod.launcher.policy import EndTheJob
from horovod.launcher.terminal import discard, discard_unwritten, signals_as_bytes

__all__ = ["run"]

# How long beyond its own limits an agent may take to end everything before the launcher does it.
_AGENT_GRACE_S = 2.0
# A rank is stopped, noticed after the frozen timeout, and ended this much later with all others that still run.
_STOPPED_END_S = 3.0
# A loop that takes this much longer than it slept was held up itself: every silence is then measured anew.
_HELD_UP_S = 1.0


@dataclasses.dataclass
class _Stopped:
    pid: int
    number: int
    time_s: float
    told: bool = False


def run(job: Job, secret: bytes | None = None, keep_words: Callable[[str], object] = lambda _: None) -> int:
    """Runs the job to its end and returns horovodrun's exit code. Call it from the main thread: it handles signals.

    `secret`: the job's, if somebody else has to know it as well. `keep_words` gets the cause of a failure as it stands
    on the terminal.
    """
    with contextlib.ExitStack() as stack:
        return _Supervisor(job, secret or new_secret(), stack, keep_words).run()


class _Supervisor:
    def __init__(
        self, job: Job, secret: bytes, stack: contextlib.ExitStack, keep_words: Callable[[str], object]
    ) -> None:
        self._job = job
        self._keep_words = keep_words
        processes.become_subreaper()  # what a killed agent leaves behind becomes ours
        address, addresses = _where_to_meet(job)
        self._server = RendezvousServer(secret, address)
        self._server.assign([dataclasses.asdict(one) for one in job.ranks])
        stack.callback(self._server.close)
        streams = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        self._outputs = Outputs(len(job.ranks), streams, job.output_directory, job.prefix_timestamp, self._warn)
        self._exits: list[RankExit] = []
        self._stopped: dict[int, _Stopped] = {}  # ranks that a signal has stopped, but not the whole job's suspension
        self._pids: dict[int, int] = {}
        self._not_started: tuple[str, int] | None = None  # why, and the exit code
        self._interrupted: int | None = None
        self._output_error: OutputError | None = None
        self._agent_lost: tuple[str, int] | None = None  # an agent that can do nothing more: why, and the exit code
        self._hosts_lost: dict[str, str] = {}  # hosts, of several, whose agents can do nothing more, and why
        self._words: set[str] = set()  # what the ranks were told of it
        self._asked = False
        self._at_once = False
        self._terminate_at: float | None = None
        self._give_up_at: float | None = None
        self._done = False  # nothing more is waited for
        self._looked_s = time.monotonic()
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._signals = stack.enter_context(signals_as_bytes())
        self._agents = AgentGroup(job, self._selector, self, secret, self._server, addresses)
        stack.callback(self._end_agents)

    def run(self) -> int:
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        for note in self._job.notes:
            self._say(note)
        self._say(f"rendezvous at {self._server.address}:{self._server.port}")
        self._agents.begin()
        while not self._done and not self._agents.all_are_done():
            timeout_s = self._timeout()
            for key, _ in self._selector.select(timeout_s):
                try:
                    key.data()
                except BrokenPipeError:
                    self._nobody_reads()
                except OutputError as error:
                    self._cannot_write(error)
            self._notice_own_pause(timeout_s)
            self._act_on_time()
        self._end_agents()
        try:
            self._outputs.close()
        except BrokenPipeError:
            pass
        except OutputError as error:
            self._cannot_write(error)
        return self._conclude()

    # the agents

    def _end_agents(self) -> None:
        """Whatever the agents left undone. Returns when no process of the job is left on this machine."""
        self._agents.end(_AGENT_GRACE_S)
        while processes.signal_descendants(os.getpid(), signal.SIGKILL):
            time.sleep(0.01)
            while _reap_one():
                pass
        self._agents.clean_up()

    def on_roll_call(self, problems: str | None) -> None:
        if problems is not None:
            self._not_started = self._not_started or (problems, 1)
            self._terminate()
        elif self._hosts_lost:  # it was ready, and has gone while others were asked
            self._terminate()
        elif not self._asked:
            self._say(f"all hosts are ready; the ranks meet at {self._agents.address}:{self._server.port}")
            self._agents.start_ranks()

    def on_words(self, agent: AgentLink, words: bytes) -> None:
        self._print(words.decode(errors="replace").rstrip("\n"))

    def on_agent_lost(self, agent: AgentLink, why: str) -> None:
        if not agent.remote and why:
            self._lose_agent(f"the agent that holds the ranks of host {agent.host} {why}", 1)
        elif agent.remote or len(self._agents.links) > 1:
            self._lose_host(agent, why)

    # events

    def on_event(self, agent: AgentLink, event: dict[str, Any]) -> None:
        match event["event"]:
            case "output":
                self._outputs.write(event["rank"], event["stream"], event["text"])
            case "started":
                rank = event["rank"]
                self._pids[rank] = event["pid"]
                self._say(f"rank {rank} on host {agent.host}: pid {event['pid']}")
            case "not started":
                text = f"rank {event['rank']} could not be started: {event['error']}"
                self._not_started = self._not_started or (text, 127)
                self._terminate()
            case "exit":
                self._on_exit(event["rank"], event["code"], event["memory"])
            case "directory":
                agent.directory = event["path"]
            case "stopped":
                self._on_stop(agent, event["rank"], event["pid"], event["signal"])
            case "continued":
                if not self._asked:  # the agent continues what it ends
                    self._stopped.pop(event["rank"], None)
                self._say(f"rank {event['rank']} continues")
            case "suspended":
                agent.suspended = True
                self._suspend_if_all_are()

    def _suspend_if_all_are(self) -> None:
        if not all(agent.suspended or agent.done for agent in self._agents.links):
            return
        self._stopped.clear()  # all of them continue together
        os.kill(os.getpid(), signal.SIGSTOP)
        for agent in self._agents.links:  # somebody has continued us
            agent.suspended = False
        self._agents.order_all("resume")

    def _on_stop(self, agent: AgentLink, rank: int, pid: int, number: int) -> None:
        limit_s = self._job.frozen_timeout_s
        self._stopped.setdefault(rank, _Stopped(pid, number, time.monotonic()))
        then = f"the job ends if it is not continued within {limit_s:g} s" if limit_s else "the other ranks wait for it"
        several = len(self._agents.links) > 1
        where = f" on host {agent.host}" if several else ""
        hint = f"on {agent.host}: kill -CONT {pid}" if several else f"kill -CONT {pid}"
        stopped = f"rank {rank} (pid {pid}){where} was stopped by {processes.signal_name(number)}"
        self._warn(f"{stopped}; {then}\nhint: {hint}")

    def _on_exit(self, rank: int, code: int, memory: str) -> None:
        ended = RankExit(rank, code, time.monotonic(), self._asked, memory)
        self._exits.append(ended)
        if not self._asked:
            self._stopped.pop(rank, None)
        text = describe_end(ended, self._pids[rank])
        self._server.gone(rank, text)
        self._say(text)
        left_s = self._job.policy.seconds_left(ended, len(self._agents.links))
        if left_s is not None and self._terminate_at is None:
            self._terminate_at = time.monotonic() + left_s

    def _on_signals(self) -> None:
        for number in os.read(self._signals, 64):
            if number == signal.SIGTSTP:
                self._agents.order_all("suspend")
            elif self._interrupted is None:
                self._interrupted = number
                self._warn(f"{processes.signal_name(number)}: ending all ranks")
                self._terminate()
            else:
                self._end_at_once()

    def _end_at_once(self) -> None:
        """Asked twice: nothing gets any more time. Asked three times: nobody waits for other machines either."""
        self._done = self._at_once
        self._at_once = True
        self._agents.order_all("kill")
        self._give_up_at = time.monotonic() + _AGENT_GRACE_S

    def _nobody_reads(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                discard(stream)
        if self._interrupted is None:
            self._interrupted = signal.SIGPIPE
            self._terminate()

    def _cannot_write(self, error: OutputError) -> None:
        if self._output_error is None:
            self._output_error = error
            self._terminate()

    def _lose_agent(self, why: str, exit_code: int) -> None:
        """Ends the job at once: without its agent, nothing on that host can be ended in order."""
        if self._agent_lost is None:
            self._agent_lost = (why, exit_code)
        self._done = True

    def _lose_host(self, agent: AgentLink, why: str) -> None:
        """One of several hosts can do nothing more. The ranks of the others get a moment to say what they lack."""
        self._agents.abandon(agent)
        why = why or _how_it_ended(agent)
        self._hosts_lost[agent.host] = why
        ended = {one.rank for one in self._exits}
        for one in agent.ranks:
            if one.rank not in ended:
                text = f"rank {one.rank} was lost with its host: the agent of {agent.host} {why}"
                self._words.add(text)
                self._server.record_failure(one.rank, text)
                self._server.gone(one.rank, text)
        if self._terminate_at is None:
            self._terminate_at = time.monotonic() + EndTheJob.SEVERAL_HOSTS_GRACE_S

    # time

    def _terminate(self) -> None:
        if not self._asked:
            self._asked = True
            self._agents.give_up_rest()
            self._agents.order_all("terminate")
            self._give_up_at = time.monotonic() + self._job.termination_grace_s + _AGENT_GRACE_S

    def _timeout(self) -> float | None:
        times = [at for at in (self._give_up_at, self._terminate_at if not self._asked else None) if at is not None]
        if self._job.frozen_timeout_s and not self._asked:
            for one in self._stopped.values():
                times.append(one.time_s + (_STOPPED_END_S if one.told else 0.0) + self._job.frozen_timeout_s)
        times += self._agents.next_look()
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _notice_own_pause(self, slept_s: float | None) -> None:
        """A launcher that was suspended, or that waited for its terminal, has not listened: silence counts anew."""
        now = time.monotonic()
        if slept_s is not None and now - self._looked_s > slept_s + _HELD_UP_S:
            self._agents.listen_anew()
        self._looked_s = now

    def _act_on_stops(self, now: float) -> None:
        """Ranks that wait in init are told at once.

        Ranks in a collective notice by themselves and end. A rank that is not in one is ended after a while.
        """
        if not self._job.frozen_timeout_s or self._asked:
            return
        for rank, one in self._stopped.items():
            late_s = now - one.time_s - self._job.frozen_timeout_s
            if late_s >= 0 and not one.told:
                one.told = True
                how = processes.signal_name(one.number)
                text = f"rank {rank} (process {one.pid}) was stopped by {how} and not continued"
                self._server.record_failure(rank, text)
                self._server.gone(rank, text)
            if late_s >= _STOPPED_END_S:
                self._terminate()

    def _act_on_silence(self, now: float) -> None:
        limit_s = self._job.agent_timeout_s
        for agent in self._agents.silent(now):
            if agent.remote:
                self._lose_host(agent, f"has said nothing for {limit_s:g} s")
                continue
            state = {"T": "is stopped", "t": "is held by a debugger"}.get(processes.state(agent.pid), "hangs")
            self._lose_agent(
                f"the agent that holds the ranks of host {agent.host} (process {agent.pid}) has said nothing for "
                f"{limit_s:g} s: it {state}; all ranks have been ended\n"
                "hint: to suspend a job, stop horovodrun itself (Ctrl-Z); HOROVOD_LOST_TIMEOUT_SECONDS=0 lets it "
                "wait for an agent",
                1,
            )

    def _act_on_time(self) -> None:
        now = time.monotonic()
        self._act_on_stops(now)
        self._act_on_silence(now)
        self._agents.look_for_late(now)
        if self._terminate_at is not None and now >= self._terminate_at:
            self._terminate()
        if self._give_up_at is not None and now >= self._give_up_at:
            self._done = True

    # the end

    def _conclude(self) -> int:
        for conclude in (self._interrupted_end, self._unwritten_end, self._unstarted_end, self._failed_end):
            code = conclude()
            if code is not None:
                return code
        return self._agents_end()

    def _interrupted_end(self) -> int | None:
        return None if self._interrupted is None else 128 + self._interrupted

    def _unwritten_end(self) -> int | None:
        if self._output_error is None:
            return None
        discard_unwritten(sys.stdout)
        self._conclude_with(f"horovodrun: {self._output_error}; all ranks have been ended")
        return 1

    def _unstarted_end(self) -> int | None:
        if self._not_started is None:
            return None
        self._conclude_with(f"horovodrun: {self._not_started[0]}")
        return self._not_started[1]

    def _failed_end(self) -> int | None:
        stopped = {rank: one.number for rank, one in self._stopped.items()}
        record = self._server.failure()
        if record is not None and record.get("rank") not in range(-1, len(self._job.ranks)):
            record = None  # not of this job's world: it would name nobody
        record = self._or_late_rank(record)
        exits = [
            dataclasses.replace(one, blames_a_peer=was_refused_by_a_peer(self._outputs.last_lines(one.rank)))
            for one in self._exits
        ]
        cause = root_cause(exits, record, stopped)
        if self._hosts_lost and self._is_of_lost_host(cause):
            self._conclude_with(f"horovodrun: {self._lost_hosts_text(cause)}")
            return 1
        if cause is None:
            return None
        hostname = self._job.ranks[cause.rank].hostname
        self._conclude_with(report(cause, exits, hostname, self._outputs.last_lines(cause.rank)))
        return cause.exit_code

    def _or_late_rank(self, record: dict[str, Any] | None) -> dict[str, Any] | None:
        """If ranks waited in init until their time was over: a record of the first rank that they waited for."""
        ended = {one.rank for one in self._exits if not one.asked}
        waited = {rank: text for rank in sorted(ended) if (text := waited_in_init(self._outputs.last_lines(rank)))}
        here = {*self._server.entered(), *ended}
        late = [rank for rank in range(len(self._job.ranks)) if rank not in here]
        if not waited or not late or (record is not None and record.get("rank") not in waited):
            return record
        return {"rank": late[0], "code": LATE, "text": next(iter(waited.values()))}

    def _is_of_lost_host(self, cause: Cause | None) -> bool:
        """Whether the job failed because a host was lost, and not before."""
        if cause is None:
            return True
        has_ended = any(one.rank == cause.rank for one in self._exits)
        return self._job.ranks[cause.rank].hostname in self._hosts_lost and not has_ended

    def _lost_hosts_text(self, cause: Cause | None) -> str:
        lines = [f"host {host} was lost: its agent {why}" for host, why in self._hosts_lost.items()]
        lines[-1] += "; all ranks have been ended"
        if cause is not None and cause.record and cause.record not in self._words:
            lines.append("  as the ranks saw it: " + cause.record.replace("\n", "\n    "))
        way = self._job.placement.start_with
        lines.append(f"hint: did the machine, its network, or {way} fail? The host's own logs may tell")
        return "\n".join([*lines, explain_command("host-lost")])

    def _agents_end(self) -> int:
        """No rank has failed: either all of them ended by themselves, or an agent failed."""
        if self._agent_lost is not None:
            self._conclude_with(f"horovodrun: {self._agent_lost[0]}\n{explain_command('agent-lost')}")
            return self._agent_lost[1]
        ended = {one.rank for one in self._exits}
        for agent in self._agents.links:
            if all(one.rank in ended for one in agent.ranks):
                continue
            code = agent.exit_code
            how = f"was killed by {processes.signal_name(-code)}" if code < 0 else f"exited with code {code}"
            self._conclude_with(
                f"horovodrun: the agent that held the ranks of host {agent.host} {how}; all ranks have been ended\n"
                + explain_command("agent-lost")
            )
            return 128 - code if code < 0 else max(code, 1)
        return 0

    def _conclude_with(self, text: str) -> None:
        self._print(text)
        self._keep_words(text)

    def _say(self, text: str) -> None:
        if self._job.verbose:
            self._warn(text)

    def _warn(self, text: str) -> None:
        self._print(f"horovodrun: {text}")

    def _print(self, text: str, stream: TextIO = sys.stderr) -> None:
        with contextlib.suppress(BrokenPipeError):
            stream.write(text + "\n")
            stream.flush()


def _where_to_meet(job: Job) -> tuple[str, list[str]]:
    """Where the rendezvous listens, and its addresses if it has to be found from other machines."""
    placements = [placement_for(host, job.placement) for host in dict.fromkeys(one.hostname for one in job.ranks)]
    if not any(placement is not None and placement.remote for placement in placements):
        return interface_address(job.network_interface) if job.network_interface else "127.0.0.1", []
    if job.network_interface:
        address = interface_address(job.network_interface)
        return address, [address]
    return "0.0.0.0", own_addresses()


def _how_it_ended(agent: AgentLink) -> str:
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


def _reap_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False
