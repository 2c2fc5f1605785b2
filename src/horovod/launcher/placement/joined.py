# SPDX-License-Identifier: Apache-2.0
"""Agents that come by themselves: another system starts them, as Spark does in its tasks.

What has started an agent connects, proves the secret, and says which one of the job's agents it brings. From then on
the connection carries the agent's orders and events. The secret never crosses it: the agent gets it from what started
it (`relay`), by the order `secret`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from horovod import __version__
from horovod.launcher.host.lines import line
from horovod.launcher.placement.base import PlacementOptions
from horovod.launcher.placement.remote import REMOTE_AGENT_COMMAND
from horovod.world import network
from horovod.world.channel import (
    AuthenticationError,
    Channel,
    ChannelError,
    Listener,
    ProtocolError,
    authenticate_client,
)

__all__ = ["JoinedPlacement", "bring"]

_PURPOSE = "agent that comes by itself"
_HELLO_S = 10.0
_CONNECT_S = 10.0  # for all addresses together
_READ_BYTES = 1 << 16
_BROKEN = 255  # as ssh ends if its connection breaks (job/fixed_job.py: how_it_ended)
_MOST_BYTES = 1 << 16  # of what an agent says of itself


class _Connection:
    """A Carrier whose pipes are a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.pid = os.getpid()
        self.stdin: IO[bytes] | None = os.fdopen(os.dup(connection.fileno()), "wb", buffering=0)
        self.stdout: IO[bytes] | None = os.fdopen(os.dup(connection.fileno()), "rb", buffering=0)
        self.stderr: IO[bytes] | None = None
        self.returncode: int | Any = None
        self._connection = connection

    def kill(self) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            self._connection.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float | None = None) -> int:
        """Closes the connection: no process is waited for."""
        if self.returncode is None:
            self.kill()
            self._connection.close()
            self.returncode = _BROKEN
        return int(self.returncode)


class JoinedPlacement:
    """Listens from construction to `close`. `tell` is called for each agent that comes, or leaves before the start.

    One agent for each index: one more is told that it is over, and leaves.
    """

    name = "joined"
    remote = True
    program = ""

    def __init__(
        self, secret: bytes, address: str, size: int, tell: Callable[..., object], version: str = __version__
    ) -> None:
        """Raises OSError if nothing can be opened at this address."""
        self._size = size
        self._tell = tell
        self._version = version
        self._lock = threading.Lock()
        self._count = 0
        self._came: dict[int, tuple[dict[str, Any], socket.socket]] = {}  # by number, in the order of their coming
        self._agents: dict[str, int] = {}  # the numbers by name, once they are chosen
        self._is_open = False  # agents may come at any time, and have names of their own
        self._started: dict[str, _Connection] = {}  # of these agents
        self._watched = select.epoll()
        listening = network.listening(address)
        self.port: int = listening.getsockname()[1]
        self._listener = Listener(listening, secret, _PURPOSE, self._join)

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            self._watched.close()
            for _, connection in self._came.values():
                connection.close()
            self._came.clear()

    def fileno(self) -> int:
        """Readable when `watch` has something to do."""
        return self._watched.fileno()

    def watch(self) -> None:
        """Tells of agents that have left; does not block."""
        with self._lock:
            self._forget_those_that_left()

    def choose(self, agents: Mapping[int, str]) -> bool:
        """Gives agents that are here their names, by their numbers; False if one has left. No other may come then."""
        with self._lock:
            if set(agents) - set(self._came):
                return False
            self._agents = {name: number for number, name in agents.items()}
            for number in agents:
                self._watched.unregister(self._came[number][1])
            return True

    def open(self) -> None:
        """Lets agents come for as long as the job runs: one that comes again is another one."""
        with self._lock:
            self._is_open = True
            for said, _ in self._came.values():
                self._name(said)

    def present(self) -> list[str]:
        """The names of the agents that are here, after `open`."""
        with self._lock:
            self._forget_those_that_left()
            gone = [name for name, carrier in self._started.items() if carrier.returncode is not None]
            for name in gone:
                del self._started[name]
            here = [name for name, number in self._agents.items() if number in self._came]
            return sorted([*self._started, *here], key=lambda name: self._agents[name])

    # as a placement

    def reaches(self, host: str, options: PlacementOptions) -> bool:
        return host in self._agents

    def start_agent(self, host: str, environment: Mapping[str, str], options: PlacementOptions) -> _Connection:
        """Takes over the connection of an agent that is here. Raises OSError if it has left."""
        with self._lock:
            self._forget_those_that_left()
            if self._agents[host] not in self._came:
                raise ConnectionAbortedError(errno.ECONNABORTED, "it has left")
            _, connection = self._came.pop(self._agents[host])
            carrier = _Connection(connection)
            if self._is_open:
                self._watched.unregister(connection)
                self._started[host] = carrier
        return carrier

    def explain(self, host: str, options: PlacementOptions, code: int, said: str) -> tuple[str, str]:
        lines = [text.strip() for text in said.splitlines() if text.strip()]
        last = f"; the last that came from it was: {lines[-1]}" if lines else ""
        return f"ended before its agent answered{last}", "the log of what started it may tell why"

    def clean_up(self, host: str, directory: str) -> None:
        """Nothing: the agent's keeper has done it (launcher/host/remote_agent.py)."""

    # the connections' own threads

    def _join(self, channel: Channel) -> None:
        deadline = time.monotonic() + _HELLO_S
        said = _checked(channel.receive(deadline), channel.peer)
        with self._lock:
            self._forget_those_that_left()  # one of them may have come again
            over = self._refusal(said["index"], said["version"])
            channel.send({"over": over}, deadline)
            if over:
                self._tell(event="refused", why=over, **said)
                return
            connection = channel.detach()
            self._count += 1
            said["number"] = self._count
            self._came[self._count] = said, connection
            self._watched.register(connection, select.EPOLLRDHUP)
            if self._is_open:
                self._name(said)
            self._tell(event="came", **said)

    def _refusal(self, index: int, version: str) -> str:
        if version != self._version:
            return f"this agent has hvd {version}, and the job has hvd {self._version}"
        if self._agents and not self._is_open:
            return "the job has started"
        if not self._is_open and any(said["index"] == index for said, _ in self._came.values()):
            return f"agent {index} is here already"
        return "" if index < self._size else f"the job has {self._size} agents"

    def _name(self, said: dict[str, Any]) -> None:
        """As a host's (elastic/drive/discovery.py)."""
        host = re.sub(r"[^A-Za-z0-9_.]", "-", said["hostname"]).lstrip("-")
        name = f"{host}.task-{said['index']}.{said.get('attempt', 0)}"
        self._agents[f"{name}-{said['number']}" if name in self._agents else name] = said["number"]

    def _forget_those_that_left(self) -> None:
        by_descriptor = {connection.fileno(): number for number, (_, connection) in self._came.items()}
        for descriptor, _ in self._watched.poll(0):
            said, connection = self._came.pop(by_descriptor[descriptor])
            self._watched.unregister(connection)
            connection.close()
            self._tell(event="left", **said)


def _checked(said: Any, peer: str) -> dict[str, Any]:
    """Returns what an agent says of itself. Raises ChannelError if it is not that."""
    wrong = not isinstance(said, dict) or type(said.get("index")) is not int or said["index"] < 0
    wrong = wrong or not all(isinstance(said.get(name), str) for name in ("hostname", "machine", "version"))
    if wrong or len(str(said)) > _MOST_BYTES or "event" in said or "why" in said:
        raise ChannelError(f"{peer} is not an agent of a job")
    assert isinstance(said, dict)
    return said


def bring(
    addresses: list[str], port: int, secret: bytes, said: Mapping[str, Any], environment: Mapping[str, str]
) -> str:
    """Starts an agent on this host, which joins the job, and carries its pipes until it has ended.

    `said`: `index`, `hostname`, `machine`, and whatever else is to be known of it. `environment`: the agent's. Returns
    why it may not join, empty if it has. Raises ChannelError if the job cannot be reached.
    """
    channel = _connected(addresses, port, secret)
    deadline = time.monotonic() + _HELLO_S
    channel.send({**said, "version": __version__}, deadline)
    over = channel.receive(deadline).get("over")
    if over:
        channel.close()
        return str(over)
    with channel.detach() as connection:
        agent = subprocess.Popen(
            REMOTE_AGENT_COMMAND,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # what ends this process' group leaves the ranks their time to end
        )
        assert agent.stdin is not None and agent.stdout is not None
        agent.stdin.write(line(order="secret", secret=secret.hex()))
        orders = threading.Thread(target=_carry_orders, args=(connection, agent.stdin), daemon=True)
        orders.start()
        with contextlib.suppress(OSError):  # the job is gone; the agent sees the end of its orders
            while data := os.read(agent.stdout.fileno(), _READ_BYTES):
                connection.sendall(data)
        agent.stdout.close()
        agent.wait()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        orders.join()
    return ""


def _carry_orders(connection: socket.socket, orders: IO[bytes]) -> None:
    with contextlib.suppress(OSError), orders:  # either end has gone
        while data := connection.recv(_READ_BYTES):
            orders.write(data)


def _connected(addresses: list[str], port: int, secret: bytes) -> Channel:
    deadline = time.monotonic() + _CONNECT_S
    while True:
        why = []
        for address in addresses:
            where = network.at_port(address, port)
            try:
                connection = network.connected(address, port, _CONNECT_S / len(addresses))
                until = time.monotonic() + _HELLO_S
                return authenticate_client(connection, secret, _PURPOSE, until, f"the job at {where}")
            except (AuthenticationError, ProtocolError):
                raise
            except OSError as error:
                why.append((f"{where} ({error.strerror or error})", isinstance(error, ChannelError)))
        # If very many come at a time, some are sent away, and get in a moment later.
        if time.monotonic() >= deadline or not any(was_there for _, was_there in why):
            raise ChannelError(f"the job cannot be reached at {', '.join(text for text, _ in why)}")
        time.sleep(random.uniform(0.05, 0.5))
