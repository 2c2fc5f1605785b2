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
from support.patience import LIMIT_S, wait_until

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
        client.settimeout(LIMIT_S)
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
                socket.create_connection(carrier), b"x" * 32, "tunnel to echo", time.monotonic() + LIMIT_S, "it"
            )
        assert through(tunnel, b"again") == b"again"


def test_a_server_closes_while_connections_wait_for_it() -> None:
    """One that it has not accepted, one that it answers, and one that came before there was a server."""
    with contextlib.closing(RendezvousServer(KEY, "127.0.0.1")) as registry, Guard() as guard:
        tunnel = process_tunnel()
        silent = socket.socket(socket.AF_INET6)
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        silent.bind(("", guard.port))
        silent.listen()
        tunnel.open((registry.address, registry.port), KEY, ["silent", "absent"])
        with contextlib.closing(Rendezvous(registry.address, registry.port, KEY)) as rendezvous:
            for name in ("silent", "absent"):
                rendezvous.put(f"address/{name}", tunnel.listen("127.0.0.1", KEY, name))
        tunnel.serve("silent", guard.port, guard.guarded())
        guard.__exit__()
        with contextlib.ExitStack() as clients:
            connected = []
            for name in ("silent", "silent", "absent"):
                client = clients.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(LIMIT_S)
                client.connect(tunnel.address(name).removeprefix("unix:"))
                client.sendall(b"x")
                connected.append(client)
            accepted, _ = silent.accept()
            with silent, accepted:
                assert accepted.recv(1) == b"x"
                for name in ("absent", "silent"):
                    tunnel.close(name)
                for client in connected:
                    with contextlib.suppress(ConnectionResetError):
                        assert client.recv(1) == b""


@contextlib.contextmanager
def process_with_tunnel(folder: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the script, which has begun when this returns. All of it has ended after the context, the carrier too."""
    start = f"from horovod.world.tunnel import *\nimport ctypes, os, signal\n{script}"
    with subprocess.Popen(
        [sys.executable, "-c", start],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        yield process
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "wait",
    ["input()", "t.open(('127.0.0.1', REGISTRY), b'k' * 32, ['none']); t.find('none')"],
    ids=["idle", "in an operation"],
)
def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path, wait: str) -> None:
    with contextlib.closing(RendezvousServer(KEY, "127.0.0.1")) as registry:
        script = f"t = Tunnel(); t.open(('127.0.0.1', 1), b'', []); print('begun', flush=True)\n{wait}"
        with process_with_tunnel(tmp_path, script.replace("REGISTRY", str(registry.port))) as process:
            (folder,) = tmp_path.iterdir()
            assert folder.stat().st_mode & 0o777 == 0o700
            wait_until(lambda: wait == "input()" or list(folder.iterdir()))
            process.send_signal(signal.SIGKILL)
            assert process.communicate()[1] == ""


def test_a_limit_ends_a_process_that_keeps_its_lock(tmp_path: Path) -> None:
    script = (
        "t = Tunnel()\n"
        "with t.limited(30, 'in time'): pass\n"
        "print('begun', flush=True)\n"
        "with t.limited(0.1, 'it did not start'): ctypes.PyDLL(None).sleep(60)\n"
    )
    with process_with_tunnel(tmp_path, script) as process:
        assert process.communicate()[1].startswith("it did not start\n")
    assert process.returncode == -signal.SIGABRT


def test_a_carrier_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    script = (
        "t = Tunnel()\n"
        "t.open(('127.0.0.1', 1), b'', [])\n"
        "print('begun', flush=True)\n"
        "os.kill(t._process.pid, signal.SIGSTOP); os.waitid(os.P_PID, t._process.pid, os.WSTOPPED)\n"
        "t._control.settimeout(0.1)\n"
        "try: t.close('none')\n"
        "except Exception as error: print(error)\n"
        "t.close('none')\n"
    )
    with process_with_tunnel(tmp_path, script) as process:
        output, errors = process.communicate()
    assert "the process that carries the data service's connections did not close within 0.1 s; it was ended" in output
    assert "the process that carries the data service's connections has ended" in errors
