# SPDX-License-Identifier: Apache-2.0
"""Worlds of real ranks, started once and used by many tests.

    with World(2, env={"HOROVOD_TRANSPORT": "tcp"}) as world:
        assert world.run(lambda: hvd.rank()) == [0, 1]             # values by rank; any error or death raises
        WorldError outcomes = world.run_each(fn, "argument")                  # errors and deaths as outcomes by rank
        call = world.start(fn); world.kill(1); call.outcomes()     # something happens while it runs

A function runs as fn(*arguments) in every rank, one call at a time; `per_rank=[(...), (...)]` gives each its own
arguments. It is pickled by value, so lambdas, closures and test modules need not be importable. Every call has a time
limit, which is renewed while processes work (patience.py); a rank that does not answer is named together with the
Python stacks of all ranks, and the world is ended. What a rank prints is kept (`world.output(rank)`) and shown with its
errors.

Session-wide reuse: the fixture `worlds` (conftest.py) is a WorldPool; `worlds(2, {"HOROVOD_TRANSPORT": "tcp"})` starts
that world once, and the next call again after a test broke it. `worlds(2, start=init)` runs `init` in all ranks, and
whenever they start again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from horovod.core import pickling
from horovod.launcher.host.processes import signal_name
from horovod.launcher.options.hosts import Host, assign_ranks
from horovod.settings import environment_of
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.secret import SecretFile, new_secret
from support.fork_server import ForkedProcess, ForkServer
from support.patience import Patience, patiently

START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 45.0
STACKS_TIMEOUT_S = 4.0  # of all ranks: some may be stopped
MAX_RANKS = 24


def spelled(size: int, env: Mapping[str, str]) -> dict[str, str]:
    """What tests write for HOROVOD_TRANSPORT, in Horovod's own words. "tcp": each rank is on a host of its own, so that
    nothing is shared; "3+1": two pretended hosts of three ranks and one; "3+1 tcp": these, and TCP between all."""
    spread, _, transport = env.get("HOROVOD_TRANSPORT", "").partition(" ")
    if spread == "tcp" and "HOROVOD_PRETEND_HOSTS" not in env:
        return {**env, "HOROVOD_PRETEND_HOSTS": ",".join(["1"] * size)}
    if "+" not in spread:
        return dict(env)
    return {**env, "HOROVOD_TRANSPORT": transport or "auto", "HOROVOD_PRETEND_HOSTS": spread.replace("+", ",")}


living: list[World] = []  # for the stack dump of conftest.py


class WorldError(AssertionError):
    """A rank raised, died or hung; the text has every rank's traceback or stacks."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one rank made of a call: a value, an error (None if it could not be pickled, see traceback), or its
    death."""

    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    died: str = ""

    @property
    def ok(self) -> bool:
        return not self.traceback and not self.died


class Call:
    """A call under way in all ranks."""

    def __init__(self, world: World, timeout_s: float) -> None:
        self._world = world
        self.patience = Patience(timeout_s)
        self._outcomes: dict[int, Outcome] = {}

    def outcomes(self) -> list[Outcome]:
        """Waits for every rank's answer or death. Raises WorldError with all stacks when the time is up."""
        world = self._world
        while len(self._outcomes) < world.size:
            open_ranks = {world.connections[rank]: rank for rank in range(world.size) if rank not in self._outcomes}
            ready = self.patience.ask(functools.partial(wait, list(open_ranks)))
            if not ready:
                late = sorted(open_ranks.values())
                ended = [(rank, outcome) for rank, outcome in self._outcomes.items() if not outcome.ok]
                others = "".join(f"--- rank {rank}: {outcome.died or outcome.traceback}" for rank, outcome in ended)
                stacks = world.stacks()
                world.end()
                world.renewed = True
                raise WorldError(f"ranks {late} did not answer in time\n{others}{stacks}")
            for connection in ready:
                assert isinstance(connection, Connection)
                self._outcomes[open_ranks[connection]] = world.answer(open_ranks[connection])
        world.busy = False
        return [self._outcomes[rank] for rank in range(world.size)]

    def results(self) -> list[Any]:
        outcomes = self.outcomes()
        if not all(outcome.ok for outcome in outcomes):
            raise WorldError(self._world.describe(outcomes))
        return [outcome.value for outcome in outcomes]


class World:
    """`size` rank processes on this host with horovodrun's rendezvous and identity. One call at a time."""

    def __init__(
        self,
        size: int,
        env: Mapping[str, str] | None = None,
        *,
        env_of_rank: Callable[[int], Mapping[str, str]] | None = None,
        hosts: Sequence[Host] | None = None,
        renewed: bool = False,
    ) -> None:
        """`renewed`: a call after the one that broke this world starts its ranks again, as it does after a hang."""
        self.size = size
        self.renewed = renewed
        self._begin = functools.partial(self._start_ranks, env or {}, env_of_rank, hosts or [Host("localhost", size)])
        self._start: Callable[[], object] | None = None
        self._begin()

    def begin_with(self, start: Callable[[], object]) -> None:
        """Runs it in all ranks, now and whenever they are started again."""
        self._start = start
        self.run(start)

    def _start_ranks(
        self, env: Mapping[str, str], env_of_rank: Callable[[int], Mapping[str, str]] | None, hosts: Sequence[Host]
    ) -> None:
        size = self.size
        self.busy = False
        self.processes: list[ForkedProcess] = []
        self.connections: list[Connection] = []
        secret = new_secret()
        self._secret_file = SecretFile(secret)
        self.rendezvous = RendezvousServer(secret)
        self._outputs = [os.memfd_create(f"rank-{rank}") for rank in range(size)]
        self._kept_outputs: dict[int, str] = {}
        meeting = environment_of(
            rendezvous_address=self.rendezvous.address,
            rendezvous_port=self.rendezvous.port,
            secret_file=self._secret_file.path,
            controller="gloo",
            cpu_operations="gloo",
        )
        living.append(self)
        for identity in assign_ranks(hosts, size):
            rank = identity.rank
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            environment.update({**meeting, **identity.environment(), **spelled(size, env)})
            environment.update(env_of_rank(rank) if env_of_rank else {})
            ours, theirs = Pipe()
            server = ForkServer.of(environment)
            self.processes.append(server.fork(environment, theirs.fileno(), self._outputs[rank]))
            theirs.close()
            self.connections.append(ours)
        for rank, connection in enumerate(self.connections):
            if not Patience(START_TIMEOUT_S).ask(connection.poll) or self._receive(rank) != b"ready":
                text = self.output(rank)
                self.end()
                raise WorldError(f"rank {rank} did not start:\n{text}")

    def start(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        per_rank: Sequence[tuple[Any, ...]] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Call:
        if self.renewed and not self.healthy:
            self.end()
            self._begin()
            if self._start is not None:
                self.run(self._start)
        assert not self.busy, "the last call's outcomes have not been taken"
        self.busy = True
        module = sys.modules.get(getattr(function, "__module__", ""))
        by_value = module is not None and not module.__name__.startswith(("horovod", "support", "torch", "numpy"))
        if by_value and module is not None:
            cloudpickle.register_pickle_by_value(module)
        try:
            payloads = [
                pickling.dumps((function, per_rank[rank] if per_rank is not None else arguments))
                for rank in range(self.size)
            ]
        finally:
            if by_value and module is not None:
                cloudpickle.unregister_pickle_by_value(module)
        call = Call(self, timeout_s)
        for rank, payload in enumerate(payloads):
            with contextlib.suppress(OSError):  # a dead rank: its outcome says so
                self.connections[rank].send_bytes(payload)
        return call

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """The values by rank. Raises WorldError if a rank raised, died or hung. Options as in `start`."""
        return self.start(function, *arguments, **options).results()

    def run_each(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Outcome]:
        """The outcomes by rank: errors and deaths do not raise. Options as in `start`."""
        return self.start(function, *arguments, **options).outcomes()

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
        self.processes[rank].send_signal(number)

    @property
    def healthy(self) -> bool:
        return not self.busy and bool(self.processes) and all(process.poll() is None for process in self.processes)

    def output(self, rank: int) -> str:
        """What the rank has written to stdout and stderr so far."""
        kept = self._kept_outputs.get(rank)
        return kept if kept is not None else os.pread(self._outputs[rank], 1 << 20, 0).decode(errors="replace")

    def stacks(self) -> str:
        """Asks every living rank for the Python stacks of its threads; they stand at the end of its output."""
        before = [len(self.output(rank)) for rank in range(self.size)]
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR2)
        texts = []
        deadline = time.monotonic() + STACKS_TIMEOUT_S
        for rank, process in enumerate(self.processes):
            # faulthandler writes the main thread last, line by line, and how Python itself was started at its end; a
            # rank that is stopped or in the kernel writes nothing.
            while process.poll() is None and time.monotonic() < deadline:
                if "_run_module_as_main" in self.output(rank)[before[rank] :]:
                    break
                time.sleep(0.01)
            state = "running" if process.poll() is None else _death(process)
            texts.append(f"--- rank {rank} (pid {process.pid}, {state})\n{self.output(rank)}")
        return "\n".join(texts)

    def describe(self, outcomes: Sequence[Outcome]) -> str:
        texts = []
        for rank, outcome in enumerate(outcomes):
            text = "returned" if outcome.ok else (outcome.died or outcome.traceback)
            shown = "" if outcome.ok else f"\noutput:\n{self.output(rank)}"
            texts.append(f"--- rank {rank}: {text}{shown}")
        return "\n".join(texts)

    def answer(self, rank: int) -> Outcome:
        payload = self._receive(rank)
        if payload is None:
            patiently(self.processes[rank].wait)
            return Outcome(died=_death(self.processes[rank]))
        kind, content, text = cloudpickle.loads(payload)
        return Outcome(value=content) if kind == "value" else Outcome(error=content, traceback=text)

    def end(self) -> None:
        """Kills what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._release()

    def let_go(self) -> None:
        """The ranks begin to leave."""
        for connection in self.connections:
            connection.close()

    def close(self, timeout_s: float = 100.0) -> None:
        """Lets the ranks leave in order; one that does not is killed, and named."""
        self.let_go()
        hung = []
        for rank, process in enumerate(self.processes):
            try:
                patiently(process.wait, timeout_s if not hung else 0.0)
            except subprocess.TimeoutExpired:
                hung.append(rank)
        text = f"ranks {hung} did not leave\n{self.stacks()}" if hung else ""
        self.end()
        if text:
            raise WorldError(text)

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and not self.busy:
            self.close()
        else:
            self.end()

    def _receive(self, rank: int) -> bytes | None:
        try:
            return self.connections[rank].recv_bytes()
        except (EOFError, OSError):
            return None

    def _release(self) -> None:
        if self not in living:
            return
        living.remove(self)
        for connection in self.connections:
            connection.close()
        self.rendezvous.close()
        self._secret_file.close()
        for rank, descriptor in enumerate(self._outputs):
            self._kept_outputs[rank] = self.output(rank)
            os.close(descriptor)


class WorldPool:
    """Worlds by size and environment, started on demand, and again by the call after one that broke them.

    At most MAX_RANKS processes live at a time: the world that has not been asked for longest makes room for a new one.
    """

    def __init__(self) -> None:
        self._worlds: dict[tuple[int, tuple[tuple[str, str], ...]], World] = {}  # the last used one last

    def __call__(
        self, size: int, env: Mapping[str, str] | None = None, start: Callable[[], object] | None = None
    ) -> World:
        """`start`: what all ranks run first, also when they are started again."""
        key = (size, tuple(sorted((env or {}).items())))
        world = self._worlds.pop(key, None)
        running = [other for other in self._worlds.values() if other in living]
        while world not in living and running and sum(other.size for other in running) + size > MAX_RANKS:
            _close([running.pop(0)])
        self._worlds[key] = world or World(size, env, renewed=True)
        if start is not None:
            self._worlds[key].begin_with(start)
        return self._worlds[key]

    def close(self) -> None:
        worlds, self._worlds = list(self._worlds.values()), {}
        _close(worlds)


def _close(worlds: list[World]) -> None:
    healthy = [world for world in worlds if world.healthy]
    try:
        for world in healthy:
            world.let_go()  # all at once, so that they leave at the same time
        for world in healthy:
            world.close()
    finally:
        for world in worlds:
            world.end()


def _death(process: ForkedProcess) -> str:
    code = process.returncode
    assert code is not None
    return f"killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"


def shut_down_alone(leaving: int) -> str:
    """For run(): the error of a rank whose peer `leaving` has shut down meanwhile."""
    import numpy as np

    import horovod.core as hvd

    hvd.init()
    hvd.allreduce(np.ones(3), name="together")
    if hvd.rank() == leaving:
        hvd.shutdown()
        return ""
    try:
        hvd.allreduce(np.ones(3), name="alone")
    except hvd.HorovodInternalError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
