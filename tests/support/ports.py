# SPDX-License-Identifier: Apache-2.0
"""What processes have open, and which listen at a TCP port: one that a job has closed may be another program's soon."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path


def open_files(process: str | Path = "/proc/self") -> list[str]:
    """What the process has open: paths, `socket:[INODE]`, `anon_inode:[pidfd]`. `process`: its folder in /proc."""
    found = []
    for descriptor in os.scandir(Path(process) / "fd"):
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            found.append(os.readlink(descriptor.path))
    return found


def listeners(port: int) -> list[Path]:
    """The processes in /proc that listen at this port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if not sockets.isdisjoint(open_files(process)):
                found.append(process)
    return found


def assert_closed(ports: list[str], folder: Path, text: str) -> None:
    """Another program may have got a port meanwhile; processes of the job run in its folder."""
    assert ports, text
    for port in ports:
        ours = [one for one in listeners(int(port)) if os.readlink(one / "cwd") == str(folder)]
        assert not ours, f"{ours} listen at {port}\n{text}"


def free_ports(count: int) -> int:
    """The first of so many ports in a row at which nothing listens.

    They are below those that the kernel gives to clients, which come and go.
    """
    while True:
        first = random.randrange(15000, 30000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
