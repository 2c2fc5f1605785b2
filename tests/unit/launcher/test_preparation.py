# SPDX-License-Identifier: Apache-2.0
"""What an agent finds out about its host before any rank starts there."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from horovod.launcher.host.preparation import Preparation
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.secret import new_secret

SECRET = new_secret()


def order(**fields: Any) -> dict[str, Any]:
    common: dict[str, Any] = {
        "secret": SECRET.hex(),
        "command": "sh",
        "path": os.defpath,
        "directory": "/",
        "network_interface": "",
    }
    common["hints"] = {"program": "install it", "interface": "--nics"}
    return {**common, "addresses": [], "port": 1, "silence_s": 5.0, "time_s": None, "temporary": "", **fields}


@pytest.fixture
def preparation() -> Iterator[Preparation]:
    one = Preparation()
    yield one
    one.close()


def problems(preparation: Preparation, **fields: Any) -> list[str]:
    return [text for text, _ in preparation.prepare(order(**fields))["problems"]]


def test_a_host_that_has_everything_is_ready(preparation: Preparation, tmp_path: Path) -> None:
    (tmp_path / "train").touch(mode=0o755)
    assert problems(preparation) == []
    assert problems(preparation, directory=str(tmp_path), command="./train", network_interface="none7,lo") == []
    assert preparation.secret == SECRET


def test_what_a_host_lacks_is_said(preparation: Preparation, tmp_path: Path) -> None:
    (tmp_path / "data").touch(mode=0o644)
    assert problems(preparation, directory="/nowhere") == ["has no folder /nowhere"]
    assert problems(preparation, command="no-such-program") == ["has no program no-such-program"]
    assert problems(preparation, directory=str(tmp_path), command="./data") == ["has no program ./data"]
    assert preparation.prepare(order(command="no-such-program"))["problems"][0][1] == "install it"
    (text,) = problems(preparation, network_interface="none7")
    assert text.startswith("has no network interface 'none7' with an address; this host has ")


def test_hosts_of_elastic_jobs_are_looked_at_closely(preparation: Preparation) -> None:
    assert problems(preparation, time_s=time.time()) == []
    (text,) = problems(preparation, time_s=time.time() + 1000)
    assert text.startswith("has a clock that is ") and text.endswith(" s behind this host's")


def test_only_an_address_where_the_secret_is_proved_is_reached(preparation: Preparation) -> None:
    with contextlib.closing(RendezvousServer(new_secret())) as strange:
        prepared = preparation.prepare(order(addresses=["127.0.0.1"], port=strange.port))
        assert prepared["reached"] == []
        assert "proved another secret" in prepared["unreached"]["127.0.0.1"]
    with contextlib.closing(RendezvousServer(SECRET)) as own:
        prepared = preparation.prepare(order(addresses=["127.0.0.1", "127.0.0.2"], port=own.port))
        assert prepared["reached"] == ["127.0.0.1"]
        assert prepared["unreached"] == {"127.0.0.2": "Connection refused"}


def test_an_address_from_which_nothing_comes_does_not_hold_up_the_others(preparation: Preparation) -> None:
    with contextlib.closing(RendezvousServer(SECRET)) as server, socket.socket() as full:
        full.bind(("127.0.0.2", server.port))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]  # as many as a backlog of 0 takes, and more
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.2", server.port))
        prepared = preparation.prepare(order(addresses=["127.0.0.2", "127.0.0.1"], port=server.port))
        for one in waiting:
            one.close()
    assert prepared["reached"] == ["127.0.0.1"]
    assert prepared["unreached"] == {"127.0.0.2": "no answer"}


def test_the_line_to_the_launcher_ends_with_it(preparation: Preparation) -> None:
    with contextlib.closing(RendezvousServer(SECRET)) as server:
        preparation.prepare(order(addresses=["127.0.0.1"], port=server.port))
        line = preparation.choose("127.0.0.1")
        assert line is not None and not line.has_ended()
    assert select.select([line], [], [], 30)[0] == [line]
    assert line.has_ended()


@pytest.mark.parametrize(("silence_s", "asks", "given_up_ms"), [(2.5, 1, 2500), (0.0, 0, 0)])
def test_the_line_to_the_launcher_is_given_up_after_its_time_or_never(
    preparation: Preparation, silence_s: float, asks: int, given_up_ms: int
) -> None:
    """And not after a few questions."""
    with contextlib.closing(RendezvousServer(SECRET)) as server:
        preparation.prepare(order(addresses=["127.0.0.1"], port=server.port, silence_s=silence_s))
        line = preparation.choose("127.0.0.1")
        assert line is not None
        preparation.ask()
        with socket.socket(fileno=os.dup(line.fileno())) as seen:
            assert seen.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == asks
            assert seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == given_up_ms


def test_agents_of_the_launchers_machine_need_no_line(preparation: Preparation) -> None:
    preparation.prepare(order())
    assert preparation.choose(None) is None
