# SPDX-License-Identifier: Apache-2.0
"""Strangers at every port that a job has open: they are turned away in time, and the job neither stops nor notices."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.extent import SLACK_S
from support.hostile import Strangers, record
from support.memory import held_kib
from support.patience import LIMIT_S, wait_until
from support.ports import open_files
from support.world import World

import horovod.core as hvd
from horovod.world import links
from horovod.world.channel import ChannelError
from horovod.world.rendezvous import PURPOSE, Rendezvous

HANDSHAKE_S = 10.0
PATIENCE_S = HANDSHAKE_S + 1.0 + SLACK_S


def reduce_ones(round_: int) -> float:
    hvd.init()
    return float(hvd.allreduce(np.ones(1000, np.float32), op=hvd.Sum, name=f"x.{round_ % 3}").sum())


def start_again() -> None:
    hvd.shutdown()
    hvd.init()


def secret_of(world: World) -> bytes:
    return os.pread(world._secret_file.descriptor, 100, 0)


def dial_tcp(port: int, address: str = "127.0.0.1") -> Callable[[], socket.socket]:
    return lambda: socket.create_connection((address, port), timeout=LIMIT_S)


def dial_unix(name: str) -> Callable[[], socket.socket]:
    def dial() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(LIMIT_S)
        connection.connect("\0" + name)
        return connection

    return dial


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_strangers_at_the_rendezvous_leave_ranks_served_and_the_job_unharmed(transport: str) -> None:
    with World(2, {"HOROVOD_TRANSPORT": transport}) as world:
        assert world.run(reduce_ones, 0) == [2000.0, 2000.0]
        dial = dial_tcp(world.rendezvous.port)
        world.rendezvous.put("contested", "old")
        message = {"op": "put", "key": "contested", "value": "recorded"}
        tape, channel = record(dial(), secret_of(world), PURPOSE, message)
        channel.receive(time.monotonic() + LIMIT_S)
        channel.close()
        world.rendezvous.put("contested", "new")
        before = threading.active_count(), descriptors(), held_kib()
        with Strangers(dial, PATIENCE_S, also=(tape, tape[:36], tape[:68], tape[36:], tape[68:], tape * 2)):
            client = Rendezvous(world.rendezvous.address, world.rendezvous.port, secret_of(world))
            client.put("served", 1)
            assert client.get("served") == 1
            for round_ in range(20):
                assert world.run(reduce_ones, round_) == [2000.0, 2000.0]
            world.run(start_again)  # which meets at the rendezvous
            assert world.run(reduce_ones, 0) == [2000.0, 2000.0]
            client.close()
        assert world.rendezvous.get("contested") == "new", "a recorded message was taken"
        assert world.rendezvous.refused >= 60
        assert world.run(reduce_ones, 1) == [2000.0, 2000.0]
        wait_until(lambda: threading.active_count() <= before[0] and descriptors() <= before[1])
        assert held_kib() - before[2] < 64 * 1024


def start_when_told(folder: str, hold: str) -> list[float]:
    """Starts; when this rank's own port is open, says where it is and waits to be told to go on."""
    rank = os.environ["HOROVOD_RANK"]

    def say_and_wait(place: str) -> None:
        Path(folder, f"port.{rank}.new").write_text(place)
        Path(folder, f"port.{rank}.new").rename(Path(folder, f"port.{rank}"))
        with open(Path(folder, f"go.{rank}"), "rb") as told:  # a pipe
            told.read()

    real_connect, real_attach = links.Mesh.connect, links.attach
    if hold == "mesh":

        def connect(self: links.Mesh, *arguments: object) -> None:
            say_and_wait(f"{self.address} {self.port}")
            real_connect(self, *arguments)  # type: ignore[arg-type]

        links.Mesh.connect = connect  # type: ignore[method-assign]
    else:

        def attach(name: str, *arguments: object) -> links.Link:
            say_and_wait(name)
            return real_attach(name, *arguments)  # type: ignore[arg-type]

        links.attach = attach  # type: ignore[assignment]
    try:
        hvd.init()
    finally:
        links.Mesh.connect, links.attach = real_connect, real_attach  # type: ignore[method-assign]
    return [reduce_ones(round_) for round_ in range(5)]


def wait_for_file(path: Path) -> str:
    wait_until(path.exists, lambda: path.name)
    return path.read_text()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_strangers_at_the_ports_of_ranks_that_start_do_not_disturb_the_start(transport: str, tmp_path: Path) -> None:
    holding = [1, 2] if transport == "shm" else [0, 1, 2]
    for rank in holding:
        os.mkfifo(tmp_path / f"go.{rank}")
    with World(3, {"HOROVOD_TRANSPORT": transport}) as world:
        call = world.start(start_when_told, str(tmp_path), "mesh" if transport == "tcp" else "attach")
        places = [wait_for_file(tmp_path / f"port.{rank}") for rank in holding]
        if transport == "tcp":
            dials = [dial_tcp(int(place.split()[1]), place.split()[0]) for place in places]
            purpose, hello = "link", {"rank": 1, "generation": 99, "purpose": 2, "index": 0}
        else:
            dials = [dial_unix(places[0])]
            purpose, hello = "local link", {"rank": 1, "generation": 99}
        crowds = []
        for dial in dials:
            tape, channel = record(dial(), secret_of(world), purpose, hello)
            with pytest.raises(ChannelError):  # another generation: hung up on
                channel.receive(time.monotonic() + LIMIT_S)
            channel.close()
            # Holders of the secret that say what makes no sense are hung up on too.
            for nonsense in (7, {}, {"rank": 77, "generation": 0, "purpose": 2, "index": 0}, {"rank": "1"}):
                _, channel = record(dial(), secret_of(world), purpose, nonsense)
                with pytest.raises(ChannelError):
                    channel.receive(time.monotonic() + LIMIT_S)
                channel.close()
            crowds.append(Strangers(dial, PATIENCE_S, also=(tape, tape[:68], tape * 2)))
        for crowd in crowds:
            crowd.__enter__()
        for rank in holding:
            (tmp_path / f"go.{rank}").write_bytes(b"go")
        assert call.results() == [[3000.0] * 5] * 3
        for crowd in crowds:
            crowd.__exit__(None)
        assert world.run(reduce_ones, 0) == [3000.0] * 3


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_has_started_listens_nowhere(transport: str) -> None:
    def listening() -> list[str]:
        """This process' sockets that accept connections."""
        reduce_ones(0)
        inodes = {name[8:-1] for name in open_files() if name.startswith("socket:")}
        found = []
        for table, state, inode, accepts in (("tcp", 3, 9, "0A"), ("tcp6", 3, 9, "0A"), ("unix", 3, 6, "00010000")):
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[inode] in inodes and fields[state] == accepts:
                    found.append(line)
        return found

    with World(3, {"HOROVOD_TRANSPORT": transport}) as world:
        assert world.run(listening) == [[], [], []]
