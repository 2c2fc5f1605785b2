# SPDX-License-Identifier: Apache-2.0
"""A process that has imported the frameworks once and forks ranks from there: a rank is ready in milliseconds, not in
the seconds that an import takes.

There is one server for each set of variables that frameworks read while they are imported. Everything else of a rank's
environment is set after the fork. What a rank is after that (session, output, death with the test process, random
state) is the same as for a process of its own. Forking is sound because the imports start no thread, which the server
checks.

The test process sends one pickled request for each rank, with three descriptors: the rank's pipe, its output, and a
pipe into which the server writes the exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gc
import importlib
import importlib.util
import os
import pickle
import random
import selectors
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import wait

from horovod.launcher.host.processes import die_with_parent
from support import processor_time, rank_main
from support.patience import Patience

_IMPORT_VARIABLES = ("TF_", "KERAS_", "JAX_", "CUDA_", "OMP_", "XLA_")
_START_TIMEOUT_S = 60.0
_PRELOADED = {
    # torch._dynamo: a rank's first optimizer would import it, for more than a second.
    "": ("numpy", "horovod.core", "torch", "torch._dynamo", "horovod.torch", "mxnet", "horovod.mxnet"),
    "tensorflow": ("tensorflow", "keras", "horovod.tensorflow", "horovod.keras"),
    "torch": ("torch", "keras", "horovod.torch", "horovod.keras"),
    "jax": ("jax", "keras", "horovod.jax", "horovod.keras"),
}


class ForkedProcess:
    """A rank, with the part of subprocess.Popen's interface that tests use."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"rank with pid {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and its status is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if selector.select(timeout_s):
                    text = os.read(self._status, 64)
                    os.close(self._status)
                    assert text, "the fork server ended before its ranks"
                    self.returncode = int(text)
        return self.returncode


class ForkServer:
    """Started on the first use for its variables; ends with the test process."""

    _servers: dict[tuple[tuple[str, str], ...], ForkServer] = {}
    with_frameworks = True  # False: ranks of tests that hardly use one import it themselves

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ForkServer:
        """The server whose imports saw these variables of `environment`."""
        seen = {key: value for key, value in environment.items() if key.startswith(_IMPORT_VARIABLES)}
        key = tuple(sorted(seen.items()))
        if key not in cls._servers:
            with processor_time.shared():
                cls._servers[key] = cls(environment)
        return cls._servers[key]

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        plain = {key: value for key, value in environment.items() if not key.startswith("HOROVOD_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.fork_server", str(theirs.fileno()), *["core"] * (not self.with_frameworks)],
            env=plain,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        theirs.close()
        self._answer()  # it has imported all

    def _answer(self) -> str:
        is_there = Patience(_START_TIMEOUT_S).ask(lambda left_s: wait([self._socket], left_s))
        answer = self._socket.recv(64) if is_there else b""
        assert answer, f"no answer of the fork server, whose exit code is {self._process.poll()}"
        return answer.decode()

    def fork(self, environment: Mapping[str, str], connection: int, output: int) -> ForkedProcess:
        """Starts a rank (rank_main.py) with this environment, pipe and output. Blocks until it has been forked."""
        reader, writer = os.pipe()
        environment_file = os.memfd_create("environment")
        try:
            os.pwrite(environment_file, pickle.dumps(dict(environment)), 0)
            socket.send_fds(self._socket, [b"fork"], [connection, output, writer, environment_file])
        finally:
            os.close(writer)
            os.close(environment_file)
        return ForkedProcess(int(self._answer()), reader)


@dataclasses.dataclass
class _Rank:
    """What a fork is to become."""

    environment: dict[str, str]
    connection: int
    output: int


def _serve(channel: socket.socket) -> _Rank | None:
    """Forks ranks until the test process has ended. Returns in each fork, too, with what it is to become."""
    selector = selectors.EpollSelector()
    selector.register(channel, selectors.EVENT_READ)
    statuses: dict[int, tuple[int, int]] = {}  # by the descriptor of a rank's process: its pid, and where its end goes
    while True:
        for key, _ in selector.select():
            if key.fd in statuses:
                selector.unregister(key.fd)
                _report_end(key.fd, *statuses.pop(key.fd))
                continue
            message, descriptors, _, _ = socket.recv_fds(channel, 64, 4)
            if not message:
                return None
            connection, output, status, environment_file = descriptors
            with open(environment_file, "rb") as file:
                environment = pickle.loads(file.read())
            pid = os.fork()
            if pid == 0:
                selector.close()
                channel.close()
                for descriptor in (status, *statuses, *(other for _, other in statuses.values())):
                    os.close(descriptor)
                return _Rank(environment, connection, output)
            os.close(connection)
            os.close(output)
            descriptor = os.pidfd_open(pid)
            statuses[descriptor] = (pid, status)
            selector.register(descriptor, selectors.EVENT_READ)
            channel.send(str(pid).encode())


def _report_end(descriptor: int, pid: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(status, str(code).encode())
    os.close(status)
    os.close(descriptor)


def _become(rank: _Rank, server: int) -> None:
    os.setsid()
    die_with_parent(parent=server)()
    for stream in (1, 2):
        os.dup2(rank.output, stream)
    os.close(rank.output)
    os.environ.clear()
    os.environ.update(rank.environment)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    rank_main.run(rank.connection)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    backend = os.environ.get("KERAS_BACKEND", "")
    names = [name for name in _PRELOADED[backend] if _is_there(name)]
    if sys.argv[2:] == ["core"] and not backend:
        names = names[:2]
    if backend == "tensorflow" and os.environ.get("TF_USE_LEGACY_KERAS") == "1":
        names.append("tf_keras")
    before = len(os.listdir("/proc/self/task"))  # an emulated processor has a thread of its own
    gc.disable()  # an eighth of the time of an import
    for name in names:
        importlib.import_module(name)
    gc.enable()
    started = len(os.listdir("/proc/self/task")) - before
    assert started == 0, f"importing {names} has started {started} threads, which a fork would lose"
    server = os.getpid()
    gc.freeze()  # a collection in a rank would touch, and so copy, every page
    channel.send(b"ready")
    rank = _serve(channel)
    if rank is not None:
        _become(rank, server)
        # It leaves as any process does, but for taking all the modules apart, page by page: seconds that test nothing.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _is_there(name: str) -> bool:
    framework = name.removeprefix("horovod.").partition(".")[0]
    return framework == "core" or importlib.util.find_spec(framework) is not None


if __name__ == "__main__":
    main()
