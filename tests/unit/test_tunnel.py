# SPDX-License-Identifier: Apache-2.0
"""A server that takes every connection, behind the tunnel: only who has the key reaches it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from horovod.world.channel import AuthenticationError, authenticate_client
from horovod.world.rendezvous import Rendezvous
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.tunnel import Guard, Tunnel, process_tunnel

KEY = b"k" * 32


def open_server(port: int) -> socket.socket:
    """Answers whoever connects, at all interfaces, as gRPC's servers do."""
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("", port))
    server.listen()

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    while data := connection.recv(1 << 16):
                        connection.sendall(data)

    threading.Thread(target=answer, daemon=True).start()
    return server


@contextlib.contextmanager
def served() -> Iterator[tuple[Tunnel, int, tuple[str, int]]]:
    """A tunnel to "echo", the server's port, and where strangers reach the carrier."""
    with contextlib.closing(RendezvousServer(KEY, "127.0.0.1")) as registry, Guard() as guard:
        tunnel = process_tunnel()
        tunnel.open((registry.address, registry.port), KEY, ["echo"])
        address = tunnel.listen("127.0.0.1", KEY, "echo")
        with contextlib.closing(Rendezvous(registry.address, registry.port, KEY)) as rendezvous:
            rendezvous.put("address/echo", address)
        tunnel.find("echo")
        server = open_server(guard.port)
        with pytest.raises(TimeoutError):  # before the server is guarded, the guard takes the connection
            socket.create_connection(("127.0.0.1", guard.port), 0.05)
        tunnel.serve("echo", guard.port, guard.guarded())
        guard.__exit__()
        try:
            yield tunnel, guard.port, ("127.0.0.1", int(address.rpartition(":")[2]))
        finally:
            server.close()
            tunnel.close("echo")


def through(tunnel: Tunnel, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(tunnel.address("echo").removeprefix("unix:"))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_only_who_has_the_key_reaches_the_server() -> None:
    with served() as (tunnel, port, carrier):
        data = os.urandom(300_000)
        assert through(tunnel, data) == data
        for stranger in ("127.0.0.1", "::1"):
            with pytest.raises(TimeoutError):
                socket.create_connection((stranger, port), 0.05)
        with pytest.raises(AuthenticationError):
            authenticate_client(
                socket.create_connection(carrier), b"x" * 32, "tunnel to echo", time.monotonic() + 5, "it"
            )
        assert through(tunnel, b"again") == b"again"


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    script = (
        "from horovod.world.tunnel import process_tunnel; print(process_tunnel()._process.pid, flush=True); input()"
    )
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert int(process.stdout.readline())
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        process.send_signal(signal.SIGKILL)
        process.stderr.read()  # until the carrier has ended, too
    assert not list(tmp_path.iterdir())
