# SPDX-License-Identifier: Apache-2.0
"""The launcher's hand on one host: starts its ranks, reads their output, and leaves no process of theirs behind.

Run as a process (placement/base.py; on other machines by remote_agent.py) with two pipes, each carrying JSON, one
object a line: orders on stdin, events on stdout. It says `hello` with its version. The order `prepare` asks whether the
host is ready (preparation.py); it carries the secret, so that this never stands on a command line or in an environment.
`start` is the job; then `terminate`, `kill`, `suspend` and `resume`. In an elastic job `start` has no ranks, the agent
stays until it is told to end, and `start_rank` and `end_rank` are about one process each.

The end of stdin means that the launcher is gone, and ends the job as well; so does the end of the connection to a
launcher on another machine, unless there soon is another one. A launcher that is stopped without an order, as batch
systems do to suspend a job, suspends the ranks of its machine too.

One thread. The agent is a subreaper: whatever the ranks leave behind, in whatever session, becomes its child and is
ended with the job. The ranks in turn are killed by the kernel when the agent dies.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import os
import selectors
import signal
import subprocess
import tempfile
import time
from typing import Any

from horovod import __version__
from horovod.core.temporary_files import has_no_init
from horovod.core.wording import of_system, tell
from horovod.launcher.host import processes
from horovod.launcher.host.command import as_here, start_rank
from horovod.launcher.host.job_directory import remove_directory, say
from horovod.launcher.host.lines import GREETING, LineError, LineReader, line
from horovod.launcher.host.memory import UNKNOWN, KillCounter
from horovod.launcher.host.preparation import Preparation
from horovod.launcher.host.threads import VARIABLE, chosen_threads
from horovod.launcher.options.hosts import unpacked
from horovod.settings import environment_of
from horovod.world.secret import SecretFile

_READ_BYTES = 1 << 16
_BACKLOG_BYTES = 1 << 20  # of events that the launcher has not taken: more, and the ranks have to wait
_KILL_INTERVAL_S = 0.05
_LAUNCHER_LOOK_S = 0.5  # how often the launcher's state is looked at, and a silent machine of its is asked for a sign
_ALIVE_S = 1.0  # how often the launcher hears from this agent, whatever the ranks do
_RENEW_S = 3.0  # how long a launcher whose line has broken may be out of reach
_RENEW_EVERY_S = 0.2
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_DRAIN_S = 2.0  # for a stream that a process outside the job holds open


class _Output:
    """One stream of one rank. Invalid UTF-8 travels as surrogates, so that the launcher can write the very bytes."""

    def __init__(self, rank: int, stream: str) -> None:
        self.rank = rank
        self.stream = stream
        self.decode = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape").decode


@dataclasses.dataclass
class _End:
    """When a rank is asked to end, None if it has been or need not be, and when it is killed."""

    ask_at: float | None
    kill_at: float


class Agent:
    """`run` returns when every process of the job has ended."""

    def __init__(self, orders: int, events: int, keeper: int | None = None) -> None:
        """`keeper`: a pipe to the process that cleans up after this one on another machine."""
        self._orders = orders
        self._events = events
        self._keeper = keeper
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, int] = {}  # by pid, those that still run
        self._processes: dict[int, subprocess.Popen[bytes]] = {}  # by pid, those that still run
        self._outputs: dict[int, _Output] = {}
        self._lines = LineReader("order", limit_bytes=None)  # from the process that has started this one
        self._unsent = bytearray()
        self._started = False
        self._stays = False  # until it is told to end: ranks come and go
        self._common: dict[str, Any] = {}  # of all ranks: command, directory, environment
        self._rank_ends: dict[int, _End] = {}  # by pid, those that were told to end
        self._suspended = False  # all ranks, by order or with the launcher
        self._stop_again_at = 0.0
        self._launcher = os.getppid()
        self._with_launcher = False
        self._launcher_gone = False
        self._renew_at: float | None = None  # when a line to the launcher that has broken is tried again
        self._renew_until = 0.0
        self._grace_s = 3.0
        self._ending = False
        self._kill_at: float | None = None
        self._drained_at: float | None = None
        self._reading = True
        self._preparation = Preparation()
        self._secret_file: SecretFile | None = None
        self._kills = KillCounter()
        self._alive_at = time.monotonic()
        self._directory = ""

    def run(self) -> None:
        processes.take_signals()
        processes.become_subreaper()
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        heeded = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        for number in (signal.SIGCHLD, *ENDING, *heeded):
            signal.signal(number, lambda *_: None)  # the byte in the wake-up pipe is what counts
        for descriptor in (self._orders, self._events):
            os.set_blocking(descriptor, False)
        self._selector.register(woken, selectors.EVENT_READ, self._on_signal)
        self._selector.register(self._orders, selectors.EVENT_READ, self._on_orders)
        self._unsent += GREETING
        self._tell(event="hello", version=__version__)
        while not self._finished():
            for key, _ in self._selector.select(self._timeout()):
                key.data(key.fd)
            self._reap()  # whether or not SIGCHLD has come
            self._follow_launcher()
            self._renew_line()
            self._preparation.ask()
            self._end_on_time()
            self._say_alive()
        if self._directory:
            if has_no_init(self._directory):
                self._tell(event="no init")
            remove_directory(self._directory)
        if self._launcher_gone:
            say(f"horovodrun: the launcher (process {self._launcher}) was killed; all ranks have been ended")
        self._tell(event="done")
        if self._events >= 0:
            os.set_blocking(self._events, True)
            self._flush()
        self._preparation.close()
        if self._secret_file is not None:
            self._secret_file.close()

    def _finished(self) -> bool:
        if not (self._started or self._ending) or self._ranks or (self._stays and not self._ending):
            return False
        # Processes that outlive their rank are asked to end, then made to; their output is still read.
        if processes.descendants(os.getpid()):
            self._begin_end()
            assert self._kill_at is not None
            return time.monotonic() >= self._kill_at + processes.UNENDED_S  # its parent says what is left
        if self._drained_at is None:
            self._drained_at = time.monotonic() + _DRAIN_S
        return not self._outputs or self._events < 0 or time.monotonic() >= self._drained_at

    def _timeout(self) -> float | None:
        ends = [self._kill_at, self._drained_at]
        ends += [end.kill_at if end.ask_at is None else end.ask_at for end in self._rank_ends.values()]
        ends.append(self._renew_at if not self._ending else None)
        times = [at - time.monotonic() for at in ends if at is not None]
        return max(_KILL_INTERVAL_S, min([*times, _LAUNCHER_LOOK_S]))

    # orders

    def _on_orders(self, descriptor: int) -> None:
        data = _read(descriptor)
        if data is None:
            return
        if not data:
            self._selector.unregister(descriptor)
            self._on_closed_pipe()
            return
        try:
            orders = self._lines.feed(data)
        except LineError as error:
            tell(f"horovodrun: the agent was sent {error}: ending all ranks")
            self._selector.unregister(descriptor)
            self._begin_end()
            return
        for order in orders:
            self._obey(order)

    def _on_closed_pipe(self) -> None:
        if self._keeper is not None and os.getppid() != self._launcher:
            self._is_told_to_end(signal.SIGTERM)  # sshd has closed the pipe, because the keeper is gone
        else:
            self._launcher_gone = True  # it does not close a pipe before it has ended this process, or heard `done`
            self._end_without_launcher()

    def _obey(self, order: dict[str, Any]) -> None:
        match order["order"]:
            case "secret":
                self._preparation.secret = bytes.fromhex(order["secret"])
            case "prepare":
                self._tell(event="prepared", **self._preparation.prepare(order))
            case "start":
                self._start(order)
            case "start_rank":
                self._start_rank(order["rank"], order["environment"])
            case "end_rank":
                self._end_rank(order["rank"], order["grace_s"])
            case "terminate":
                self._begin_end()
            case "kill":
                self._begin_end()
                self._kill_at = time.monotonic()
            case "signal":
                for pid in self._ranks:
                    os.kill(pid, order["number"])
            case "suspend":
                self._suspend()
                self._tell(event="suspended")
            case "resume":
                self._resume()

    def _on_line_to_launcher(self, _: int) -> None:
        line_to_launcher = self._preparation.line_to_launcher
        assert line_to_launcher is not None
        if not line_to_launcher.has_ended():
            return
        self._selector.unregister(line_to_launcher)
        if line_to_launcher.silent:
            self._lose_launcher()
        else:
            self._renew_at = time.monotonic()
            self._renew_until = self._renew_at + _RENEW_S

    def _renew_line(self) -> None:
        """Connects to the launcher again: a device between two machines may break a connection while both are well."""
        now = time.monotonic()
        if self._renew_at is None or now < self._renew_at or self._ending:
            return
        line_to_launcher = self._preparation.renew()
        if line_to_launcher is not None:
            self._renew_at = None
            self._selector.register(line_to_launcher, selectors.EVENT_READ, self._on_line_to_launcher)
        elif now >= self._renew_until:
            self._lose_launcher()
        else:
            self._renew_at = now + _RENEW_EVERY_S

    def _lose_launcher(self) -> None:
        """Gives up the launcher: its machine is silent, or it has ended, so that events have no reader any more."""
        self._launcher_gone = True
        self._read_ranks(True)
        self._watch_events(False)
        self._events = -1
        self._unsent.clear()
        self._end_without_launcher()

    def _suspend(self) -> None:
        self._suspended = True
        self._stop_again_at = time.monotonic() + _LAUNCHER_LOOK_S
        processes.signal_descendants(os.getpid(), signal.SIGSTOP)

    def _resume(self) -> None:
        processes.signal_descendants(os.getpid(), signal.SIGCONT)
        self._suspended = False

    def _follow_launcher(self) -> None:
        if self._ending or self._launcher_gone:
            return
        if os.getppid() != self._launcher and self._keeper is None:  # though another process may hold the pipe open
            self._lose_launcher()
            return
        if self._suspended and time.monotonic() >= self._stop_again_at:
            self._suspend()  # a process that was being forked while the others were stopped
        stopped = processes.state(self._launcher) == "T"
        if stopped and not self._suspended:
            self._with_launcher = True
            self._suspend()
        elif not stopped and self._with_launcher:
            self._with_launcher = False
            self._resume()

    def _start(self, job: dict[str, Any]) -> None:
        self._started = True
        self._grace_s = job["grace_s"]
        self._secret_file = SecretFile(self._preparation.secret)
        line_to_launcher = self._preparation.choose(job["address"])
        if line_to_launcher is not None:
            self._selector.register(line_to_launcher, selectors.EVENT_READ, self._on_line_to_launcher)
        self._make_directory(job["environment"].get("TMPDIR"))
        if self._keeper is not None:
            # The processes that the keeper ends in this one's place have the same time.
            grace_s = 0.0 if job["stays"] else self._grace_s
            os.write(self._keeper, f"{grace_s} {self._directory}".encode())
        job = as_here(job, environment_of(secret_file=self._secret_file.path, job_directory=self._directory or None))
        threads = chosen_threads(job["environment"], job["slots"])
        if threads is not None:
            job["environment"][VARIABLE] = str(threads)
            self._tell(event="threads", number=threads)
        self._common = job
        self._stays = job["stays"]
        for rank, identity in unpacked(job["ranks"]):
            if self._ending:
                return
            self._start_rank(rank, identity)

    def _make_directory(self, parent: str | None) -> None:
        try:
            # No longer than what multiprocessing would make itself: the names of its sockets have 108 bytes.
            self._directory = tempfile.mkdtemp(prefix="hvd-", dir=parent if parent and os.path.isdir(parent) else None)
        except OSError as error:
            say(f"horovodrun: warning: no folder for temporary files: {of_system(error)}")
            return
        self._tell(event="directory", path=self._directory)

    def _start_rank(self, rank: int, identity: dict[str, str]) -> None:
        try:
            environment = {**self._common["environment"], **identity}
            secret = [self._secret_file.descriptor] if self._secret_file is not None else []
            process = start_rank(self._common["command"], environment, self._common["directory"], secret)
        except (OSError, subprocess.SubprocessError) as error:
            self._tell(event="not started", rank=rank, error=of_system(error))
            if not self._stays:
                self._begin_end()
            return
        self._ranks[process.pid] = rank
        self._processes[process.pid] = process
        for stream in ("stdout", "stderr"):
            # The descriptor is ours from here on: the Popen object would close it when it is forgotten.
            descriptor = os.dup(getattr(process, stream).fileno())
            getattr(process, stream).close()
            os.set_blocking(descriptor, False)
            self._outputs[descriptor] = _Output(rank, stream)
            if self._reading:
                self._selector.register(descriptor, selectors.EVENT_READ, self._on_output)
        self._tell(event="started", rank=rank, pid=process.pid)

    # what the ranks do

    def _on_output(self, descriptor: int) -> None:
        output = self._outputs.get(descriptor)  # its end may have been read since it was seen to be ready
        data = None if output is None else _read(descriptor)
        if output is None or data is None:
            return
        text = output.decode(data, final=not data)
        if text or not data:
            self._tell(event="output", rank=output.rank, stream=output.stream, text=text, end=not data)
        if not data:
            if descriptor in self._selector.get_map():  # not while the launcher reads too slowly
                self._selector.unregister(descriptor)
            os.close(descriptor)
            del self._outputs[descriptor]

    def _read_rest(self, rank: int) -> None:
        """Reads a rank's last output, which may explain its end, before that is told. Its children may still write."""
        for _ in range(_BACKLOG_BYTES // _READ_BYTES):
            for descriptor in [known for known, output in self._outputs.items() if output.rank == rank]:
                self._on_output(descriptor)

    def _on_signal(self, descriptor: int) -> None:
        for number in _read(descriptor) or b"":
            if number in PASSED_ON:  # the launcher passes it on to the ranks of all hosts
                self._tell(event="signalled", number=number)
            elif number in ENDING:
                self._is_told_to_end(number)

    def _is_told_to_end(self, number: int) -> None:
        if not self._ending:
            self._tell(event="told to end", number=number, alone=os.getppid() != self._launcher)
            self._begin_end()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._on_child(pid, status)

    def _on_child(self, pid: int, status: int) -> None:
        rank = self._ranks.get(pid)
        if rank is None:
            return  # an adopted orphan
        if os.WIFSTOPPED(status):
            if not self._suspended:
                self._tell(event="stopped", rank=rank, pid=pid, signal=os.WSTOPSIG(status))
        elif os.WIFCONTINUED(status):
            self._tell(event="continued", rank=rank)
        else:
            del self._ranks[pid]
            self._read_rest(rank)
            self._rank_ends.pop(pid, None)
            if self._stays:
                processes.signal_session(pid, signal.SIGKILL)  # what it leaves behind must not outlive it in its slot
            code = os.waitstatus_to_exitcode(status)
            self._processes.pop(pid).returncode = code  # else it would be waited for once more
            memory = self._kills.scope_of_kill() if code == -signal.SIGKILL else UNKNOWN
            self._tell(event="exit", rank=rank, code=code, memory=memory)

    # the end

    def _end_rank(self, rank: int, grace_s: float) -> None:
        """Kills one rank `grace_s` later. It is about to end by itself, so it is asked to only shortly before that."""
        pid = next((pid for pid, known in self._ranks.items() if known == rank), None)
        if pid is None:
            return
        kill_at = time.monotonic() + grace_s
        if pid not in self._rank_ends:
            self._rank_ends[pid] = _End(kill_at - self._grace_s if grace_s else None, kill_at)
        elif kill_at < self._rank_ends[pid].kill_at:
            self._rank_ends[pid].kill_at = kill_at

    def _begin_end(self) -> None:
        self._ending = True
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s
            processes.signal_descendants(os.getpid(), signal.SIGTERM)
            processes.signal_descendants(os.getpid(), signal.SIGCONT)  # a stopped process would not see the former

    def _end_without_launcher(self) -> None:
        """A launcher on another machine may still live, and give another worker the place of one of these soon."""
        if self._stays and self._keeper is not None:
            self._kill_at = time.monotonic()
        self._begin_end()

    def _end_on_time(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            processes.signal_descendants(os.getpid(), signal.SIGKILL)  # again and again: they may still fork
        for pid, end in self._rank_ends.items():
            if time.monotonic() >= end.kill_at:
                processes.signal_session(pid, signal.SIGKILL)
            elif end.ask_at is not None and time.monotonic() >= end.ask_at:
                end.ask_at = None
                processes.signal_session(pid, signal.SIGTERM)
                processes.signal_session(pid, signal.SIGCONT)

    # events

    def _tell(self, **event: Any) -> None:
        if self._events < 0:
            return
        self._unsent += line(**event)
        self._flush()

    def _say_alive(self) -> None:
        """Sends a sign of life every second: else the launcher could not tell a stopped agent from a quiet job."""
        if time.monotonic() >= self._alive_at and not self._unsent:
            self._alive_at = time.monotonic() + _ALIVE_S
            self._tell(event="alive")

    def _flush(self, _: int = -1) -> None:
        while self._unsent and self._events >= 0:
            try:
                del self._unsent[: os.write(self._events, self._unsent)]
            except BlockingIOError:
                break
            except BrokenPipeError:
                self._events = -1
                self._unsent.clear()
                self._on_closed_pipe()  # the last rank may end before the other pipe is looked at
        self._watch_events(bool(self._unsent) and self._events >= 0)
        self._read_ranks(len(self._unsent) < _BACKLOG_BYTES)

    def _watch_events(self, wanted: bool) -> None:
        known = [key.fd for key in self._selector.get_map().values() if key.data == self._flush]
        if wanted and not known:
            self._selector.register(self._events, selectors.EVENT_WRITE, self._flush)
        elif not wanted and known:
            self._selector.unregister(known[0])

    def _read_ranks(self, wanted: bool) -> None:
        if wanted == self._reading:
            return
        self._reading = wanted
        for descriptor in self._outputs:
            if wanted:
                self._selector.register(descriptor, selectors.EVENT_READ, self._on_output)
            else:
                self._selector.unregister(descriptor)


def _read(descriptor: int) -> bytes | None:
    """None: nothing there right now."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return None


def main(keeper: int | None = None) -> None:
    # Descriptors 0 and 1 are given away, so that nothing else can read orders or write among the events.
    orders, events = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):
        Agent(orders, events, keeper).run()


if __name__ == "__main__":
    main()
