# SPDX-License-Identifier: Apache-2.0
"""The work of horovodrun for every job: one loop over its agents, signals and times, its output, and an end in order.

The loop is over what can happen: an agent says something, a signal arrives, a time is reached. It runs a group of
agents, one for each host (agents.py, agent_link.py, placement/). A job ends in this order: `terminate` asks the agents
to end their ranks, each agent says `done` when no process of its ranks is left, and `_conclude` names the cause.

fixed_job.py has the rest for jobs whose ranks stay the same, elastic_job.py for those whose workers come and go.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from horovod.core.wording import plain
from horovod.launcher.host import processes
from horovod.launcher.host.agent import PASSED_ON
from horovod.launcher.host.threads import VARIABLE
from horovod.launcher.job.agent_link import AgentLink
from horovod.launcher.job.agents import AgentGroup
from horovod.launcher.job.events import JobEvents
from horovod.launcher.job.output import OutputError, Outputs, local_time
from horovod.launcher.job.spec import Job
from horovod.launcher.job.terminal import discard, discard_unwritten, signals_as_bytes
from horovod.launcher.options.room import allow_open_files
from horovod.launcher.options.usage import UsageError
from horovod.world import job_files
from horovod.world.network import ANY, LOOPBACK, at_port, interface_address, own_addresses, running_networks
from horovod.world.rendezvous_server import RendezvousServer

if TYPE_CHECKING:
    from horovod.launcher.watch.live import LiveView

__all__ = ["Conclusion", "Keep", "Supervision"]

# How long beyond its own limits an agent may take to end everything before the launcher does it.
_AGENT_GRACE_S = 2.0
_UNKNOWN_HOSTS, _UNKNOWN_RANKS = 128, 512  # assumed if the job does not limit them
_LONG_S = 60.0  # a job that gets a summary without being asked
# The agents of a batch system's job get a signal together. It is passed on once in this time.
_SAME_SIGNAL_S = 2.0
# A loop that takes this much longer than it slept was held up itself: every silence is then measured anew.
_HELD_UP_S = 1.0


@dataclasses.dataclass(frozen=True)
class Conclusion:
    """How a job has ended, for horovod.run. `text`: the cause of a failure as it stands on the terminal.

    Of an elastic job also: `has_trained`, whether the training has come to its end. If so, `workers` are those of the
    last world, by number; if not, those whose ends are the reason. `lost`: the agents whose loss is the reason.
    """

    text: str = ""
    has_trained: bool = False
    workers: Sequence[int] = ()
    lost: Sequence[str] = ()


# Keeps a job's conclusion for the caller.
Keep = Callable[[Conclusion], object]


class Supervision(JobEvents):
    """The loop, and the end. Subclasses say what the events mean."""

    def __init__(
        self, job: Job, hosts: list[str] | None, secret: bytes, stack: contextlib.ExitStack, keep: Keep
    ) -> None:
        """`hosts`: all that the job will ever have; None: that is not known."""
        self.job = job
        self._keep = keep
        self._networks = running_networks()
        allow_open_files(*_most_that_come(job, hosts))
        processes.become_subreaper()  # what a killed agent leaves behind becomes ours
        address, addresses = _where_to_meet(job, hosts)
        try:
            self.server = RendezvousServer(secret, address)
            here = LOOPBACK if address == ANY else address
            self._file = job_files.write(here, self.server.port, secret, _shown(job))
        except OSError as error:
            hint = f"`ip address show lo` must have {LOOPBACK}; {job.terms.interface} names another interface"
            raise UsageError(
                f"no port can be opened at {address or 'any address'}: {error.strerror}\nhint: {hint}", 1
            ) from error
        stack.callback(self.server.close)
        if self._file is not None:
            stack.callback(self._file.remove)
        self._streams: dict[str, BinaryIO] = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        self._view: LiveView | None = None
        if job.top:
            from horovod.launcher.watch.live import live_view  # jobs start earlier without it

            self._view = live_view(self._file.id if self._file else "?", self.server.statuses, self._streams)
            self._streams = self._view.streams
            stack.callback(self._end_view)
        self._end_line: Callable[[str], None] = lambda _: None
        self.outputs = Outputs(
            len(job.ranks),
            self._streams,
            job.output_directory,
            job.prefix_timestamp,
            self.warn,
            prefix=job.prefix,
            only_rank=job.only_rank,
            flag="--output-filename" if job.report is None else "--report",
        )
        self._end_line = self.outputs.end_line
        self.pids: dict[int, int] = {}
        self._began_s = time.monotonic()
        self.asked = False  # all ranks, to end
        self.done = False  # nothing more is waited for
        self._interrupted: int | None = None
        self._output_error: OutputError | None = None
        self._not_started: tuple[str, int] | None = None  # why, and the exit code
        self._at_once = False
        self._left: list[int] = []  # processes that cannot be ended
        self._suspending = False
        self.has_no_init = False  # a process of a rank has imported horovod, and never called init
        self._threads: set[int] = set()  # that were spoken of
        self._passed_on_s: dict[int, float] = {}  # by signal, when an agent has last got it
        self._give_up_at: float | None = None
        self._looked_s = time.monotonic()
        self.selector = stack.enter_context(selectors.DefaultSelector())
        self._signals = stack.enter_context(signals_as_bytes())
        self.agents = AgentGroup(job, self.selector, self, secret, self.server, addresses)
        stack.callback(self._end_agents)

    def run(self) -> int:
        """Runs the job to its end and returns horovodrun's exit code."""
        self.selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        for note in self.job.notes:
            self.say(note)
        self.say(f"rendezvous at {at_port(self.server.address or '*', self.server.port)}")
        self.begin()
        while not self.done and not self.is_over():
            timeout_s = self._timeout()
            for key, _ in self.selector.select(timeout_s):
                self._try(key.data)
            self._try(lambda: self.outputs.show_unended(time.monotonic()))
            self._notice_own_pause(timeout_s)
            self._act_on_time()
        self._end_agents()
        try:
            self.outputs.close()
        except BrokenPipeError:
            pass
        except OutputError as error:
            self._cannot_write(error)
        self._end_view()
        self._summarize()
        code = self._conclude()
        for stream in (sys.stdout, sys.stderr):
            discard_unwritten(stream)
        return code

    def _try(self, act: Callable[[], object]) -> None:
        """Does something that may write what the ranks have said."""
        try:
            act()
        except BrokenPipeError:
            self._nobody_reads()
        except OutputError as error:
            self._cannot_write(error)

    def is_over(self) -> bool:
        """True if there is nothing left to wait for."""
        return self.agents.all_are_done()

    # the agents

    def _end_agents(self) -> None:
        """Whatever the agents left undone: only what cannot be ended is left on this machine."""
        self.agents.end(_AGENT_GRACE_S)
        left = processes.end_descendants(0.0 if self._left else processes.UNENDED_S)
        for pid in left if not self._left else ():
            self.warn(processes.why_left(pid))
        self._left = left
        self.agents.clean_up()

    def on_words(self, agent: AgentLink, words: bytes) -> None:
        self._print(words.decode(errors="replace").rstrip("\n"))

    # events

    def on_event(self, agent: AgentLink, event: dict[str, Any]) -> None:
        match event["event"]:
            case "output":
                self.outputs.write(event["rank"], event["stream"], event["text"])
                if event["end"]:
                    self.outputs.end(event["rank"], event["stream"])
            case "started":
                self.pids[event["rank"]] = event["pid"]
                self.on_started(agent, event["rank"], event["pid"])
            case "not started":
                self.on_not_started(agent, event["rank"], event["error"])
            case "exit":
                self.on_exit(agent, event["rank"], event["code"], event["memory"])
            case "directory":
                agent.directory = event["path"]
            case "threads":
                self._say_threads(event["number"])
            case "no init":
                self.has_no_init = True
            case "stopped":
                self.on_stop(agent, event["rank"], event["pid"], event["signal"])
            case "continued":
                self.on_continued(event["rank"])
            case "signalled":
                now, number = time.monotonic(), event["number"]
                if now - self._passed_on_s.get(number, -_SAME_SIGNAL_S) >= _SAME_SIGNAL_S:
                    self._passed_on_s[number] = now
                    self._pass_on(number)
            case "told to end":
                self.on_agent_told(agent, _who_told(agent, event["number"], event["alone"]), event["number"])
            case "suspended":
                agent.suspended = True
                self._suspend_if_all_are()

    def _say_threads(self, number: int) -> None:
        if number not in self._threads:
            self._threads.add(number)
            self.warn(f"{VARIABLE}={number} for each rank: a host's cores divided by its ranks, unless you set it")

    def _suspend_if_all_are(self) -> None:
        if not all(agent.suspended or agent.done for agent in self.agents.links):
            return
        os.kill(os.getpid(), signal.SIGSTOP)
        self._suspending = False
        for agent in self.agents.links:  # this process has been continued
            agent.suspended = False
        self.on_resumed()
        self.agents.order_all("resume")

    def _on_signals(self) -> None:
        for number in os.read(self._signals, 64):
            if number == signal.SIGTSTP:
                if not self._suspending:  # else the second answer would suspend once more
                    self._suspending = True
                    self.agents.order_all("suspend")
            elif number in PASSED_ON:
                self._pass_on(number)
            elif self._interrupted is None:
                self._interrupted = number
                self.terminate()
                self.say_interrupted(number)
            elif number != signal.SIGHUP:  # a terminal that is closed may tell so twice
                self._end_at_once()

    def _pass_on(self, number: int) -> None:
        self.say(f"{processes.signal_name(number)} is sent to all ranks")
        self.agents.order_all("signal", number=number)

    def _end_at_once(self) -> None:
        """Asked twice: nothing gets any more time. Asked three times: the launcher does not wait for other machines."""
        self.done = self._at_once
        self._at_once = True
        self.agents.order_all("kill")
        self._give_up_at = time.monotonic() + _AGENT_GRACE_S

    def _nobody_reads(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                discard(stream)
        if self._interrupted is None:
            self._interrupted = signal.SIGPIPE
            self.terminate()

    def _cannot_write(self, error: OutputError) -> None:
        if self._output_error is None:
            self._output_error = error
            self.terminate()

    def say_interrupted(self, number: int) -> None:
        """A signal has come, and the job ends."""
        self.warn(f"{processes.signal_name(number)}: ending all ranks")

    # time

    def terminate(self) -> None:
        """Ends the job in order. Idempotent."""
        if not self.asked:
            self.asked = True
            self.agents.give_up_rest()
            self.agents.order_all("terminate")
            self._give_up_at = time.monotonic() + self.job.termination_grace_s + _AGENT_GRACE_S

    def _timeout(self) -> float | None:
        times = [*self.times(), *self.agents.next_look()]
        times += [at] if (at := self.outputs.next_time()) is not None else []
        if self._give_up_at is not None:
            times.append(self._give_up_at)
        if self._view is not None:
            times.append(self._view.next_s)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _notice_own_pause(self, slept_s: float | None) -> None:
        """A launcher that was suspended, or that waited for its terminal, has not listened: silence counts anew."""
        now = time.monotonic()
        if slept_s is not None and now - self._looked_s > slept_s + _HELD_UP_S:
            self.agents.listen_anew()
            self.on_own_pause(now - self._looked_s - slept_s)
        self._looked_s = now

    def _act_on_silence(self, now: float) -> None:
        limit_s = self.job.agent_timeout_s
        for agent in self.agents.silent(now):
            why = f"has said nothing for {limit_s:g} s"
            if not agent.remote:
                how = {"T": "is stopped", "t": "is held by a debugger"}.get(processes.state(agent.pid), "hangs")
                why += f": it {how}"
            elif down := self._networks - running_networks():
                why += f"; {', '.join(sorted(down))} of this host went down"
            self.on_silence(agent, why)

    def _act_on_time(self) -> None:
        now = time.monotonic()
        self._act_on_silence(now)
        self.agents.look_for_late(now)
        self.act_on_time(now)
        if self._view is not None:
            self._view.act(now, self.warn)
        if self._give_up_at is not None and now >= self._give_up_at:
            self.done = True

    # the end

    def _end_view(self) -> None:
        if self._view is not None:
            self._view.close()
            self._streams = self._view.streams

    def _summarize(self) -> None:
        """Says what the ranks have done, if asked for or if the job was a long one."""
        seconds = time.monotonic() - self._began_s
        if seconds > _LONG_S if self.job.summary is None else self.job.summary:
            from horovod.launcher.watch.summary import summary  # jobs end earlier without it

            for line in summary(self.server.statuses(), seconds):
                self.warn(line)

    def could_not_start(self, why: str, exit_code: int) -> None:
        """Nothing has started, or not all."""
        self._not_started = self._not_started or (why, exit_code)
        self.terminate()

    def _conclude(self) -> int:
        for end in (self._interrupted_end, self._unwritten_end, self._unstarted_end, *self.ends()):
            code = end()
            if code is not None:
                return code
        return 0

    def _interrupted_end(self) -> int | None:
        if self._interrupted is None:
            return None
        self._keep(Conclusion(f"horovodrun: {processes.signal_name(self._interrupted)}: all ranks were ended"))
        return 128 + self._interrupted

    def _unwritten_end(self) -> int | None:
        if self._output_error is None:
            return None
        self.conclude_with(f"horovodrun: {self._output_error}; all ranks have been ended")
        return 1

    def _unstarted_end(self) -> int | None:
        if self._not_started is None:
            return None
        self.conclude_with(f"horovodrun: {self._not_started[0]}")
        return self._not_started[1]

    def conclude_with(self, text: str, **more: Any) -> None:
        """`more`: see Conclusion."""
        if text:
            self._print(text)
        self._keep(Conclusion(plain(text), **more))

    def say(self, text: str) -> None:
        if self.job.verbose:
            self.warn(text)

    def warn(self, text: str) -> None:
        self._print(f"horovodrun: {text}")

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # it has no reader, the terminal is closed, the disk is full
            self._end_line("stderr")
            words = (local_time() if self.job.prefix_timestamp else "") + plain(text) + "\n"
            if self._view is None:
                sys.stderr.write(words)
                sys.stderr.flush()
            else:
                self._streams["stderr"].write(words.encode())
                self._streams["stderr"].flush()


def _who_told(agent: AgentLink, number: int, alone: bool) -> str:
    """In words, behind the name of an agent. `alone`: its parent, which sends SIGTERM with its own end, is gone."""
    if alone and agent.remote:
        return "ended because its parent process on that host was killed"
    return f"was sent {processes.signal_name(number)} by something outside this job"


def _most_that_come(job: Job, hosts: list[str] | None) -> tuple[int, int]:
    """Hosts and ranks, of elastic jobs as far as is known."""
    most = job.elastic.rules.max_np if job.elastic is not None else len(job.ranks)
    return (_UNKNOWN_HOSTS if hosts is None else len(hosts)), most or _UNKNOWN_RANKS


def _shown(job: Job) -> str:
    """The command, for `horovodrun jobs`."""
    if job.joined is not None:
        return "horovod.spark.run"
    return shlex.join(job.command) if job.command[0] else "horovod.run"  # whose program is this Python


def _where_to_meet(job: Job, hosts: list[str] | None) -> tuple[str, list[str]]:
    """Where the rendezvous listens, and its addresses if it has to be found from other machines."""
    placements = [job.placement_for(host) for host in hosts or ()]
    if hosts is not None and not any(placement is not None and placement.remote for placement in placements):
        return interface_address(job.network_interface) if job.network_interface else LOOPBACK, []
    if job.network_interface:
        address = interface_address(job.network_interface)
        return address, [address]
    return ANY, own_addresses()
