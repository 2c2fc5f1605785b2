# SPDX-License-Identifier: Apache-2.0
"""Checks that an agent's host is ready for its ranks: working directory, command, networks, a way to the launcher.

On another machine than the launcher's, the connection that proved the way stays open. It tells the agent that the
launcher's machine was lost: ssh would not notice.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from horovod.launcher.host import host_health
from horovod.world.channel import Channel
from horovod.world.network import interface_address, machine
from horovod.world.reach import reach

__all__ = ["LineToLauncher", "Preparation"]

_IDLE_S = 1  # before the kernel asks; less is not possible
_ASK_S = 0.25
_RENEW_S = 1.0  # for an answer in place of a connection that has broken
_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class LineToLauncher:
    """An idle connection to the rendezvous, kept alive by the kernels: it ends when the other machine is silent.

    The kernel asks for a sign of life once a second at most. On a link that loses packets these few questions and
    answers may all be lost, so `ask` adds some.
    """

    def __init__(self, channel: Channel, silence_s: float) -> None:
        """`silence_s`: how long the launcher's machine may give no sign of life; 0: for ever."""
        self._socket = channel.detach()
        self._socket.setblocking(False)
        self.silent = False  # it has ended because nothing came from the other machine
        self._watches = silence_s > 0
        self._ask_at_s = 0.0
        if self._watches:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _IDLE_S)
            # The time of silence counts, not the number of questions. (No data is sent, which might find no room.)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(silence_s * 1000))
            self.ask()

    def ask(self) -> None:
        """Asks, if there was no sign of life for a second. To be called often: it does so at most every 0.25 s."""
        if self._watches and time.monotonic() >= self._ask_at_s:
            self._ask_at_s = time.monotonic() + _ASK_S
            # Whenever this is set, the kernel's timer starts anew with what is left of the second: nothing, then.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)

    def fileno(self) -> int:
        return self._socket.fileno()

    def has_ended(self) -> bool:
        """Once it is readable."""
        try:
            return not self._socket.recv(4096)
        except BlockingIOError:
            return False
        except OSError as error:
            self.silent = error.errno in _SILENT
            return True

    def close(self) -> None:
        self._socket.close()


class Preparation:
    """The checks that an agent makes before it starts ranks. `secret`: the job's, after `prepare`."""

    def __init__(self) -> None:
        self.secret = b""
        self.line_to_launcher: LineToLauncher | None = None
        self._lines: dict[str, LineToLauncher] = {}
        self._address = ""
        self._port = 0
        self._silence_s = 0.0

    def prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        """The answer to the order `prepare`. Blocks for a few seconds at most.

        An agent that came by itself has the secret already: it got the order `secret` from what started it.
        Keys: problems, pairs of a text and a hint; reached, the addresses at which the rendezvous answered; unreached,
        why the others did not, by address; machine, see network.py.
        """
        if order["secret"] is not None:
            self.secret = bytes.fromhex(order["secret"])
        directory, command = order["directory"] or os.getcwd(), order["command"] or sys.executable
        problems: list[Sequence[str]] = []
        if not os.path.isdir(directory):
            hint = "the job's working directory must exist on all hosts: a shared folder, or a copy at the same path"
            problems.append([f"has no folder {directory}", hint])
        elif not _is_executable(command, directory, order["path"]):
            problems.append([f"has no program {command}", order["hints"]["program"]])
        if order["network_interface"]:
            try:
                interface_address(order["network_interface"])
            except ValueError as error:
                hint = f"{order['hints']['interface']} eth0,ib0 takes the first that a host has"
                problems.append([f"has {error}", hint])
        if order["time_s"] is not None:  # of an elastic job
            problems += host_health.problems(order["time_s"], order["temporary"])
        self._port, self._silence_s = order["port"], order["silence_s"]
        reached, unreached = reach(order["addresses"], self._port, self.secret)
        self._lines = {one: LineToLauncher(channel, self._silence_s) for one, channel in reached.items()}
        return {
            "problems": problems,
            "reached": sorted(self._lines),
            "unreached": unreached,
            "machine": machine(),
        }

    def choose(self, address: str | None) -> LineToLauncher | None:
        """Keeps the connection to this address alone, if there is one."""
        self.line_to_launcher = self._lines.pop(address, None) if address else None
        self._address = address or ""
        self._close_others()
        return self.line_to_launcher

    def renew(self) -> LineToLauncher | None:
        """Another connection in place of one that has ended, None if the launcher does not answer within a second."""
        reached, _ = reach([self._address], self._port, self.secret, _RENEW_S)
        if not reached:
            return None
        if self.line_to_launcher is not None:
            self.line_to_launcher.close()
        self.line_to_launcher = LineToLauncher(reached[self._address], self._silence_s)
        return self.line_to_launcher

    def ask(self) -> None:
        """Asks the launcher's machine for a sign of life, if it was silent; to be called often."""
        for one in (*self._lines.values(), *([self.line_to_launcher] if self.line_to_launcher else [])):
            one.ask()

    def close(self) -> None:
        self._close_others()
        if self.line_to_launcher is not None:
            self.line_to_launcher.close()

    def _close_others(self) -> None:
        while self._lines:
            self._lines.popitem()[1].close()


def _is_executable(command: str, directory: str, path: str) -> bool:
    if os.sep in command:
        command = os.path.join(directory, command)
    return shutil.which(command, path=path) is not None
