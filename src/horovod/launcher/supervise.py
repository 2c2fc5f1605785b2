# SPDX-License-Identifier: Apache-2.0
"""One job from start to end, seen from horovodrun: rendezvous, agent, events, signals, and the last words."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import horovod
from horovod.core.network import interface_address
from horovod.core.secret import new_secret
from horovod.core.settings import environment_of
from horovod.launcher import processes
from horovod.launcher.agent import remove_directory
from horovod.launcher.failure import RankExit, describe_end, report, root_cause
from horovod.launcher.hosts import Placement
from horovod.launcher.lines import LineError, LineReader, line
from horovod.launcher.output import OutputError, Outputs
from horovod.launcher.rendezvous_server import RendezvousServer

__all__ = ["Job", "run"]

# How long the ranks that remain may raise and handle their errors after one has failed.
SURVIVOR_GRACE_S = 1.0
# How long beyond its own limits the agent may take to end everything before the launcher does it.
_AGENT_GRACE_S = 2.0
# A rank is stopped, noticed after the frozen timeout, and ended this much later with all others that still run.
_STOPPED_END_S = 3.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


@dataclasses.dataclass(frozen=True)
class Job:
    command: list[str]
    placements: list[Placement]
    environment: dict[str, str]  # what the ranks get besides their identity
    termination_grace_s: float = 3.0
    frozen_timeout_s: float = 3.0  # how long a rank may be stopped by a signal; 0: for ever
    network_interface: str = ""
    output_directory: Path | None = None
    verbose: bool = False


@dataclasses.dataclass
class _Stopped:
    pid: int
    number: int
    time_s: float
    told: bool = False


def run(job: Job) -> int:
    """Runs the job to its end and returns horovodrun's exit code. Call it from the main thread: it handles signals."""
    with contextlib.ExitStack() as stack:
        return _Supervisor(job, stack).run()


class _Supervisor:
    def __init__(self, job: Job, stack: contextlib.ExitStack) -> None:
        self._job = job
        processes.become_subreaper()  # what a killed agent leaves behind becomes ours
        secret = new_secret()
        address = interface_address(job.network_interface) if job.network_interface else "127.0.0.1"
        self._server = RendezvousServer(secret, address)
        stack.callback(self._server.close)
        streams = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        self._outputs = Outputs(len(job.placements), streams, job.output_directory)
        self._exits: list[RankExit] = []
        self._stopped: dict[int, _Stopped] = {}  # ranks that a signal has stopped, but not the whole job's suspension
        self._directory = ""
        self._pids: dict[int, int] = {}
        self._not_started: str | None = None
        self._interrupted: int | None = None
        self._output_error: OutputError | None = None
        self._asked = False
        self._terminate_at: float | None = None
        self._give_up_at: float | None = None
        self._done = False  # nothing more is to be waited for ...
        self._agent_done = False  # ... because the agent has done its work, or died
        self._lines = LineReader("event")
        self._selector = stack.enter_context(selectors.DefaultSelector())
        self._signals = stack.enter_context(_signals_as_bytes())
        self._agent = self._start_agent()
        stack.callback(self._end_agent)
        self._order(self._start_order(secret))

    def run(self) -> int:
        assert self._agent.stdout is not None
        events = self._agent.stdout.fileno()
        self._selector.register(events, selectors.EVENT_READ, self._on_events)
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        while not self._done:
            for key, _ in self._selector.select(self._timeout()):
                try:
                    key.data(key.fd)
                except BrokenPipeError:
                    self._nobody_reads()
                except OutputError as error:
                    self._cannot_write(error)
            self._act_on_time()
        self._end_agent()
        try:
            self._outputs.close()
        except BrokenPipeError:
            pass
        except OutputError as error:
            self._cannot_write(error)
        return self._conclude()

    # the agent

    def _start_agent(self) -> subprocess.Popen[bytes]:
        # The agent imports this very package, whatever the user's directory holds.
        root = str(Path(horovod.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [root, self._job.environment.get("PYTHONPATH", "")]))
        environment = {**self._job.environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "horovod.launcher.agent"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches horovodrun alone, which then ends the job in order
        )

    def _start_order(self, secret: bytes) -> dict[str, Any]:
        job = self._job
        meeting = environment_of(
            rendezvous_address=self._server.address,
            rendezvous_port=self._server.port,
            network_interface=job.network_interface or None,
            controller="gloo",
            cpu_operations="gloo",
        )
        self._say(f"rendezvous at {self._server.address}:{self._server.port}")
        return {
            "order": "start",
            "secret": secret.hex(),
            "command": job.command,
            "directory": os.getcwd(),
            "environment": {**job.environment, "PYTHONUNBUFFERED": "1", **meeting},
            "ranks": [{"rank": one.rank, "environment": one.environment()} for one in job.placements],
            "grace_s": job.termination_grace_s,
        }

    def _order(self, order: dict[str, Any]) -> None:
        assert self._agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # an agent that is gone shows at its events' end
            self._agent.stdin.write(line(**order))

    def _end_agent(self) -> None:
        """Whatever the agent left undone. Returns when no process of the job is left."""
        assert self._agent.stdin is not None and self._agent.stdout is not None
        if not self._agent_done:
            self._agent.kill()  # before its orders end, which to it would mean that this process was killed
        with contextlib.suppress(BrokenPipeError):
            self._agent.stdin.close()
        try:
            self._agent.wait(timeout=_AGENT_GRACE_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()
        while processes.signal_descendants(os.getpid(), signal.SIGKILL):
            time.sleep(0.01)
            while _reap_one():
                pass
        self._agent.stdout.close()
        if os.path.isdir(self._directory):  # the agent could not
            remove_directory(self._directory)

    # events

    def _on_events(self, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 16)
        if not data:
            self._selector.unregister(descriptor)
            self._done = self._agent_done = True
            return
        try:
            events = self._lines.feed(data)
        except LineError as error:
            self._warn(f"the agent that holds the ranks of this host sent {error}")
            self._selector.unregister(descriptor)
            self._done = True
            return
        for event in events:
            self._on_event(event)

    def _on_event(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "output":
                self._outputs.write(event["rank"], event["stream"], event["text"])
            case "started":
                rank = event["rank"]
                self._pids[rank] = event["pid"]
                self._say(f"rank {rank} on host {self._job.placements[rank].hostname}: pid {event['pid']}")
            case "not started":
                self._not_started = self._not_started or f"rank {event['rank']} could not be started: {event['error']}"
            case "exit":
                self._on_exit(event["rank"], event["code"], event["memory"])
            case "directory":
                self._directory = event["path"]
            case "stopped":
                self._on_stop(event["rank"], event["pid"], event["signal"])
            case "continued":
                if not self._asked:  # the agent continues what it ends
                    self._stopped.pop(event["rank"], None)
                self._say(f"rank {event['rank']} continues")
            case "suspended":
                self._stopped.clear()  # all of them continue together
                os.kill(os.getpid(), signal.SIGSTOP)
                self._order({"order": "resume"})  # somebody has continued us
            case "done":
                self._done = self._agent_done = True

    def _on_stop(self, rank: int, pid: int, number: int) -> None:
        limit_s = self._job.frozen_timeout_s
        self._stopped.setdefault(rank, _Stopped(pid, number, time.monotonic()))
        then = f"the job ends if it is not continued within {limit_s:g} s" if limit_s else "the other ranks wait for it"
        self._warn(
            f"rank {rank} (pid {pid}) was stopped by {processes.signal_name(number)}; {then}\nhint: kill -CONT {pid}"
        )

    def _on_exit(self, rank: int, code: int, memory: str) -> None:
        self._exits.append(RankExit(rank, code, time.monotonic(), self._asked, memory))
        if not self._asked:
            self._stopped.pop(rank, None)
        self._server.gone(rank, describe_end(rank, self._pids[rank], code))
        self._say(f"rank {rank} exited with code {code}")
        if code != 0 and self._terminate_at is None:
            self._terminate_at = time.monotonic() + SURVIVOR_GRACE_S

    def _on_signals(self, descriptor: int) -> None:
        for number in os.read(descriptor, 64):
            if number == signal.SIGTSTP:
                self._order({"order": "suspend"})
            elif self._interrupted is None:
                self._interrupted = number
                self._warn(f"{processes.signal_name(number)}: ending all ranks")
                self._terminate()
            else:
                self._done = True  # asked twice: at once

    def _nobody_reads(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                _discard(stream)
        if self._interrupted is None:
            self._interrupted = signal.SIGPIPE
            self._terminate()

    def _cannot_write(self, error: OutputError) -> None:
        if self._output_error is None:
            self._output_error = error
            self._terminate()

    # time

    def _terminate(self) -> None:
        if not self._asked:
            self._asked = True
            self._order({"order": "terminate"})
            self._give_up_at = time.monotonic() + self._job.termination_grace_s + _AGENT_GRACE_S

    def _timeout(self) -> float | None:
        times = [at for at in (self._give_up_at, self._terminate_at if not self._asked else None) if at is not None]
        if self._job.frozen_timeout_s and not self._asked:
            for one in self._stopped.values():
                times.append(one.time_s + (_STOPPED_END_S if one.told else 0.0) + self._job.frozen_timeout_s)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _act_on_stops(self, now: float) -> None:
        """Ranks that wait in init are told at once. All others notice by themselves, and end; what does not, because it
        has nothing to do with the others right now, is ended after a while."""
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

    def _act_on_time(self) -> None:
        now = time.monotonic()
        self._act_on_stops(now)
        if self._terminate_at is not None and now >= self._terminate_at:
            self._terminate()
        if self._give_up_at is not None and now >= self._give_up_at:
            self._done = True

    # the end

    def _conclude(self) -> int:
        if self._interrupted is not None:
            return 128 + self._interrupted
        if self._output_error is not None:
            _discard_unwritten(sys.stdout)
            self._warn(f"{self._output_error}; all ranks have been ended")
            return 1
        if self._not_started is not None:
            self._warn(self._not_started)
            return 127
        stopped = {rank: one.number for rank, one in self._stopped.items()}
        record = self._server.failure()
        if record is not None and record.get("rank") not in range(-1, len(self._job.placements)):
            record = None  # not of this job's world: it would name nobody
        cause = root_cause(self._exits, record, stopped)
        if cause is not None:
            hostname = self._job.placements[cause.rank].hostname
            self._print(report(cause, self._exits, hostname, self._outputs.last_lines(cause.rank)))
            return cause.exit_code
        if len(self._exits) < len(self._job.placements):
            code = self._agent.returncode
            how = f"was killed by {processes.signal_name(-code)}" if code < 0 else f"exited with code {code}"
            self._warn(f"the agent that held the ranks of this host {how}; all ranks have been ended")
            return 128 - code if code < 0 else max(code, 1)
        return 0

    def _say(self, text: str) -> None:
        if self._job.verbose:
            self._warn(text)

    def _warn(self, text: str) -> None:
        self._print(f"horovodrun: {text}")

    def _print(self, text: str, stream: TextIO = sys.stderr) -> None:
        with contextlib.suppress(BrokenPipeError):
            stream.write(text + "\n")
            stream.flush()


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[int]:
    """A descriptor from which each signal of _SIGNALS is read as its number."""
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    asked = []

    def on_signal(number: int, _: object) -> None:
        # The byte in the pipe is what counts. But who reads our output may have stopped to, and then the loop that
        # reads the pipe is stuck in a write: the second request gives the output up, and the write returns.
        if number != signal.SIGTSTP:
            asked.append(number)
            if len(asked) > 1:
                _discard(sys.stdout, sys.stderr)

    for number in _SIGNALS:
        if before[number] is not signal.SIG_IGN:  # nohup
            signal.signal(number, on_signal)
    old = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    try:
        yield woken
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(waker)


def _discard(*streams: TextIO) -> None:
    """What is written from now on, also by a write that blocks right now, goes nowhere."""
    with open(os.devnull, "wb") as nowhere:
        for stream in streams:
            os.dup2(nowhere.fileno(), stream.fileno())


def _discard_unwritten(stream: TextIO) -> None:
    """What could not be written would be tried again at the interpreter's end, and fail there once more."""
    try:
        stream.flush()
    except OSError:
        _discard(stream)


def _reap_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False
