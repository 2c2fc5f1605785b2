# SPDX-License-Identifier: Apache-2.0
"""horovodrun as a user runs it, in a place where anything it leaves behind is seen.

    with Job(tmp_path, "-np", "2", python("print('hello')")) as job: ...   # a running job: lines, signals, pids
    done = run_job(tmp_path, "-np", "2", python("...")); done.code, done.stdout, done.stderr, done.seconds

Both assert at the end that no process of the job is left, no file in TMPDIR, and none new in /dev/shm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from support.cluster import Host
from support.extent import SLACK_S
from support.patience import LIMIT_S, Patience, patiently, wait_until

GONE_S = 3.0 + SLACK_S


def python(code: str) -> list[str]:
    """A command that runs Python code; `rank`, `os`, `sys`, `signal` and `ready` (says so to the test) are at hand."""
    head = (
        "import os, sys, signal\n"
        "rank = int(os.environ['HOROVOD_RANK'])\n"
        "def ready(): os.write(1, b'ready %d\\n' % os.getpid())\n"  # one write: children share the pipe
    )
    return [sys.executable, "-c", head + code]


def our_environment(**more: str) -> dict[str, str]:
    """For a program that is to import what this process can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def abreast(size: int, folder: Path) -> str:
    """Code with which that many ranks wait for each other, before a step with a short time limit."""
    return (
        "import pathlib, time\n"
        f"here = pathlib.Path({str(folder)!r})\n"
        "(here / f'here.{os.getpid()}.{os.uname().nodename}').touch()\n"
        f"while len(list(here.glob('here.*'))) < {size}: time.sleep(0.01)\n"
    )


def stderr_of(rank: int, stderr: str) -> str:
    """The lines of horovodrun's stderr that are of this rank, also those of equal tracebacks (`[0-2]<stderr>:`)."""

    def is_its(line: str) -> bool:
        found = re.match(r"\[([\d,-]+)\]<stderr>:", line)
        parts = [part.split("-") for part in found[1].split(",")] if found else []
        return any(int(part[0]) <= rank <= int(part[-1]) for part in parts)

    return "".join(filter(is_its, stderr.splitlines(True)))


def shared_memory_files() -> set[str]:
    """In /dev/shm, but those of MPIs, which leave some if their ranks are killed."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("mpich_shm", "sm_segment", "Intel_MPI"))}


def wait_until_shared_memory_is_as(before: set[str]) -> None:
    """Fails if files stay in /dev/shm. Those of other tests, which run at the same time, come and go."""
    wait_until(lambda: shared_memory_files() <= before, lambda: shared_memory_files() - before, GONE_S)


def variable(pid: int, name: str) -> str | None:
    """What stands in a process's environment; None also if it has ended."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"):
            if entry.startswith(f"{name}="):
                return entry.partition("=")[2]
    return None


@dataclasses.dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def said(self) -> str:
        """The stderr of a command that does not use Horovod, without the note that it has not called init."""
        return re.sub(r"horovodrun: no rank has called init in this job, .*\nhint: .*\n\Z", "", self.stderr)


class Job:
    """One horovodrun. Its output is read as it comes; `__exit__` ends it and looks for what it left."""

    def __init__(
        self,
        directory: Path,
        *arguments: str | list[str],
        env: Mapping[str, str] | None = None,
        read: bool = True,
        nohup: bool = False,
        blocked: Collection[int] = (),
        on: Host | None = None,
    ) -> None:
        """`blocked`: signals under a mask of the parent's.

        `on`: a host of a cluster (support/cluster.py), by default this machine.
        """
        self.mark = f"HVD_TEST_JOB={uuid.uuid4().hex}"
        self._temporary = directory / "tmp"
        self._temporary.mkdir(exist_ok=True)
        # A cluster's hosts have a /tmp each, which Host.assert_empty looks into.
        temporary = str(self._temporary) if on is None else "/tmp"
        self._shared_memory = shared_memory_files()
        flat = [word for argument in arguments for word in ([argument] if isinstance(argument, str) else argument)]
        name, _, value = self.mark.partition("=")

        def as_the_parent() -> None:
            # The suite may itself run under nohup, which the launcher would honour.
            signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)

        self._began = time.monotonic()
        command = [sys.executable, "-m", "horovod.launcher", *flat]
        self.process = subprocess.Popen(
            command if on is None else on.command(*command, directory=directory),
            env=our_environment(**{"OMP_NUM_THREADS": "1", "TMPDIR": temporary, name: value, **(env or {})}),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=as_the_parent,
        )
        self._text: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._lines: dict[str, queue.Queue[str]] = {stream: queue.Queue() for stream in self._text}
        self._readers = [threading.Thread(target=self._read, args=(stream,), daemon=True) for stream in self._text]
        for reader in self._readers if read else []:
            reader.start()

    def _read(self, stream: str) -> None:
        pipe = getattr(self.process, stream)
        for line in iter(pipe.readline, b""):
            self._text[stream].append(line.decode(errors="surrogateescape"))
            self._lines[stream].put(self._text[stream][-1])

    def wait_for_line(self, pattern: str, stream: str = "stdout", count: int = 1) -> list[re.Match[str]]:
        """Blocks until `count` lines of the stream have matched; they may come among others. Reads each line once."""
        found: list[re.Match[str]] = []
        patience = Patience()
        while len(found) < count:
            may_come = any(reader.is_alive() for reader in self._readers) and patience.left_s()
            try:
                line = self._lines[stream].get(timeout=0.1)
            except queue.Empty:
                if may_come:
                    continue
                raise AssertionError(f"{len(found)} of {count} lines like {pattern!r} came\n{self.shown()}") from None
            match = re.search(pattern, line)
            if match:
                found.append(match)
        return found

    def wait_for_text(self, pattern: str) -> None:
        """Blocks until that was printed, whenever it was, and on whichever stream."""
        wait_until(lambda: re.search(pattern, self.shown()), lambda: f"{pattern!r}\n{self.shown()}")

    def wait_ready(self, count: int) -> dict[int, int]:
        """Blocks until `count` ranks said ready(); their pids by rank."""
        return {int(m[1]): int(m[2]) for m in self.wait_for_line(r"^\[(\d+)\]<stdout>:ready (\d+)", count=count)}

    def wait(self) -> Done:
        try:
            code = patiently(self.process.wait)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"horovodrun did not end\n{self.shown()}") from None
        for reader in self._readers:
            reader.join(timeout=LIMIT_S)
        stdout, stderr = ("".join(self._text[stream]) for stream in ("stdout", "stderr"))
        return Done(code, stdout, stderr, time.monotonic() - self._began)

    def shown(self) -> str:
        return "".join(f"--- {stream}\n{''.join(lines)}" for stream, lines in self._text.items())

    def pids(self) -> dict[int, str]:
        """Every living process of the job, horovodrun included, by the mark in its environment; with its command."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{entry}/environ").read_bytes()
                if self.mark.encode() in environment.split(b"\0"):
                    found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def launcher(self) -> int:
        """horovodrun itself, also on a host of a cluster, where `process` only carries it."""
        return next(pid for pid, command in self.pids().items() if command.split()[1:3] == ["-m", "horovod.launcher"])

    def agent(self) -> int:
        return next(pid for pid, command in self.pids().items() if "horovod.launcher.host.agent" in command)

    def rendezvous_port(self) -> int:
        """Where horovodrun hears its ranks."""
        ports = (variable(pid, "HOROVOD_GLOO_RENDEZVOUS_PORT") for pid in self.pids())
        return int(next(filter(None, ports)))

    def assert_gone(self, within_s: float = GONE_S) -> None:
        wait_until(lambda: not self.pids(), lambda: f"left behind: {self.pids()}", within_s)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.assert_gone()
                # TensorFlow removes what it compiles from when the interpreter ends, if nobody kills it.
                paths = [path for path in self._temporary.rglob("*") if "__autograph_generated_file" not in str(path)]
                left = [str(path) for path in paths if path.name != "__pycache__"]
                assert left == [], f"left behind in TMPDIR: {left}\n{self.shown()}"
                wait_until_shared_memory_is_as(self._shared_memory)
        finally:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
            for reader in filter(threading.Thread.is_alive, self._readers):
                reader.join(timeout=LIMIT_S)
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()


def run_job(
    directory: Path, *arguments: str | list[str], env: Mapping[str, str] | None = None, on: Host | None = None
) -> Done:
    with Job(directory, *arguments, env=env, on=on) as job:
        return job.wait()
