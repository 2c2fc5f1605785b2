# SPDX-License-Identifier: Apache-2.0
"""A job whose agents come by themselves, supervised by a process of its own.

The supervisor adopts orphans, handles signals and kills all its descendants; in the caller's process these could belong
to other code, such as Spark's JVM. The two talk over a socket, the process' stdin: JSON, one object a line.

    caller -> process   {"order": "plan", ...}                 what is known from the beginning (`Supervised`)
    process -> caller   {"event": "listens", "port": ...}      for the agents
                        {"event": "came", "index": ..., ...}   also "left" and "refused": placement/joined.py
    caller -> process   {"order": "start", ...}                when all agents are here: which rank is whose
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import IO, Any

from horovod.core.wording import plain
from horovod.elastic.decide.job import BLAME_HOST, BLAME_WORKER, Rules
from horovod.elastic.drive.discovery import HostDiscovery
from horovod.elastic.drive.driver import Limits
from horovod.launcher.function.answers import write
from horovod.launcher.function.exchange import Exchange
from horovod.launcher.host import processes
from horovod.launcher.host.lines import LineReader, line
from horovod.launcher.job.fixed_job import FixedJob
from horovod.launcher.job.spec import ElasticPlan, Job, Joined, Terms
from horovod.launcher.job.supervision import Conclusion, Supervision
from horovod.launcher.options.hosts import RankIdentity
from horovod.launcher.options.room import allow_open_files
from horovod.launcher.options.usage import UsageError
from horovod.launcher.placement.joined import JoinedPlacement
from horovod.settings import Settings, current_environment
from horovod.world.interpreter import python_command
from horovod.world.network import ANY, interface_address

__all__ = ["Supervised", "put"]

_READ_BYTES = 1 << 16


class Supervised:
    """The process, as its caller sees it: its events, its end, and its output. One thread."""

    def __init__(self, stdout: Any, stderr: Any, **plan: Any) -> None:
        """Starts it. `stdout`, `stderr`: what takes the output, text or bytes.

        The plan:
        `secret`: the job's; `size`: agents and ranks; `interface`: names of network interfaces, or "";
        `task`, `answers`, `conclusion`: paths of files (answers.py); `environment`: of the ranks, over their agent's
        own; `python`: of the ranks, "" for their agent's own; `verbose`: 0 to 2; `timestamps`: in the output;
        `start_timeout_s`: for the agents to be ready, once all are here; `elastic`: None, or the rules of an elastic
        job (_elastic), whose agents are hosts of one slot each; `terms`: the caller's (job/spec.py).
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                python_command("horovod.launcher.function.supervised"),
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        self._socket = ours
        self._lines = LineReader("event")
        self.ended = False
        pairs = ((self._process.stdout, stdout), (self._process.stderr, stderr))
        self._copies = [threading.Thread(target=_copy, args=pair, daemon=True) for pair in pairs]
        for copy in self._copies:
            copy.start()
        self.order("plan", parent=os.getpid(), **{**plan, "secret": plan["secret"].hex()})

    def fileno(self) -> int:
        return self._socket.fileno()

    def order(self, name: str, **fields: Any) -> None:
        with contextlib.suppress(ConnectionError):  # it has ended, which shows in `events`
            self._socket.sendall(line(order=name, **fields))

    def events(self) -> list[dict[str, Any]]:
        """Those that have come, at least one unless the process has ended. Blocks."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        self.ended = self.ended or not data
        return self._lines.feed(data)

    def end(self) -> None:
        """Asks it to end the job in order."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit code, once all of its output is written."""
        code: int = self._process.wait()
        for copy in self._copies:
            copy.join()
        self._socket.close()
        return code


def put(target: Any, text: str) -> None:
    """Writes to what the caller gave for output: a file for text or bytes, or any object with a method `write`."""
    target.write(text.encode("utf-8", "replace") if _takes_bytes(target) else text)
    if hasattr(target, "flush"):
        target.flush()


def _takes_bytes(target: Any) -> bool:
    return isinstance(target, (io.RawIOBase, io.BufferedIOBase))


def _copy(pipe: IO[bytes], target: Any) -> None:
    """Writes all that comes to `target`. If that fails, it says so once, and the job goes on without its output."""
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    works = True
    with pipe:
        while True:
            data = pipe.read(_READ_BYTES)
            text = decode(data, final=not data)
            if works and text:
                try:
                    put(target, text)
                except Exception as error:  # the caller's own code
                    works = False
                    text = f"horovod: the ranks' output can no longer be written: {error!r}"
                    warnings.warn(plain(text), stacklevel=1)
            if not data:
                return


class _Quiet(Supervision):
    """Says nothing of the job's end: its caller raises an exception that does."""

    quiet = False

    def say_interrupted(self, number: int) -> None:
        pass

    def conclude_with(self, text: str, **more: Any) -> None:
        self._keep(Conclusion(plain(text), **more))

    def _print(self, text: str) -> None:
        if not self.quiet:
            super()._print(text)


class _FixedJob(_Quiet, FixedJob):
    pass


class _Agents(HostDiscovery):
    """The agents that are here, as hosts."""

    def __init__(self, placement: JoinedPlacement) -> None:
        self._placement = placement

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict.fromkeys(self._placement.present(), 1)


def main() -> int:
    # Ctrl-C reaches the caller too, which then asks for the end once; a second request would leave no grace.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.take_signals()
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    lines = LineReader("order", limit_bytes=None)  # from the process that has started this one
    (plan,) = _orders(control, lines)
    processes.die_with_parent(signal.SIGTERM, plan["parent"])()
    lock = threading.Lock()

    def tell(**event: Any) -> None:
        with lock:
            control.sendall(line(**event))

    secret, size = bytes.fromhex(plan["secret"]), plan["size"]
    allow_open_files(size, size)
    address = interface_address(plan["interface"]) if plan["interface"] else ANY
    with (
        contextlib.closing(JoinedPlacement(secret, address, size, tell)) as placement,
        contextlib.closing(Exchange(secret, address, plan["task"], plan["answers"])) as exchange,
    ):
        tell(event="listens", port=placement.port)
        start = _start(control, lines, placement)
        return _run(_job(plan, start, placement, exchange.port), secret, plan)


def _orders(control: socket.socket, lines: LineReader) -> list[dict[str, Any]]:
    """At least one; blocks. Ends this process if the caller is gone, or gives the job up."""
    while data := control.recv(_READ_BYTES):
        if orders := lines.feed(data):
            return orders
    sys.exit(1)


def _start(control: socket.socket, lines: LineReader, placement: JoinedPlacement) -> dict[str, Any]:
    """The order to start, once it fits the agents that are here."""
    while True:
        waiting, _, _ = select.select([control.fileno(), placement.fileno()], [], [])
        if placement.fileno() in waiting:
            placement.watch()
        for start in _orders(control, lines) if control.fileno() in waiting else ():
            if start["agents"] is None:
                placement.open()
                return start
            if placement.choose({int(number): name for number, name in start["agents"].items()}):
                return start  # else one of them has just left, and the caller is told


def _job(plan: Mapping[str, Any], start: Mapping[str, Any], placement: JoinedPlacement, port: int) -> Job:
    ranks = [RankIdentity(**place) for place in start.get("places", ())]
    settings = Settings.from_environment({**current_environment(), **plan["environment"]})
    joined = Joined(placement, tuple(start.get("names", ())), start.get("environments", {}))
    return Job(
        command=[plan["python"], "horovod.launcher.function.run_task", "--port", str(port)],
        ranks=ranks,
        directory="",
        environment=plan["environment"],
        joined=joined,
        elastic=_elastic(plan["elastic"], settings, placement) if plan["elastic"] is not None else None,
        start_timeout_s=plan["start_timeout_s"],
        termination_grace_s=settings.termination_grace_s,
        frozen_timeout_s=settings.frozen_timeout_s,
        agent_timeout_s=settings.lost_timeout_s,
        network_interface=plan["interface"],
        verbose=plan["verbose"] > 1,
        prefix_timestamp=plan["timestamps"],
        terms=Terms(**plan.get("terms", {})),
    )


def _elastic(rules: Mapping[str, Any], settings: Settings, placement: JoinedPlacement) -> ElasticPlan:
    """`rules`: `np`, `min_np`, `max_np`, `reset_limit`, and `timeout_s`, how long the job waits for `min_np` agents.

    A worker that fails has another one in its place; its agent, which is alone on its host, is given up after some.
    """
    return ElasticPlan(
        Rules(
            np=rules["np"],
            min_np=rules["min_np"],
            max_np=rules["max_np"],
            reset_limit=rules["reset_limit"],
            blame=BLAME_HOST if settings.elastic_blame == "host" else BLAME_WORKER,
            restart=settings.elastic_state_loss == "restart",
            settle=settings.elastic_settle_s > 0,
        ),
        Limits(
            slots_s=rules["timeout_s"],
            straggler_s=settings.elastic_straggler_s,
            settle_s=settings.elastic_settle_s,
            start_s=settings.start_timeout_s,
            join_s=settings.elastic_join_s,
            cooldown=lambda _: None,
            start_name="HOROVOD_START_TIMEOUT",
        ),
        discovery=_Agents(placement),
        discovery_s=settings.elastic_discovery_s,
    )


def _run(job: Job, secret: bytes, plan: Mapping[str, Any]) -> int:
    keep = functools.partial(write, plan["conclusion"])
    _Quiet.quiet = plan["verbose"] < 1
    try:
        with contextlib.ExitStack() as stack:
            if job.elastic is None:
                return _FixedJob(job, secret, stack, keep).run()
            from horovod.launcher.job.elastic_job import ElasticJob  # other jobs start earlier without it

            class _ElasticJob(_Quiet, ElasticJob):
                pass

            return _ElasticJob(job, job.elastic, secret, stack, keep).run()
    except UsageError as error:
        keep(Conclusion(f"horovodrun: {error}"))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
