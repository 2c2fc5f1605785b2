# SPDX-License-Identifier: Apache-2.0
"""Which generation this is, and where a rank is in it, is the rendezvous' word: a newcomer joins the fifth generation,
although it is its first."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

import pytest
from support.patience import Patience, patiently, wait_until

from horovod.launcher.options.hosts import Host, assign_ranks
from horovod.settings import environment_of
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.secret import SecretFile, new_secret

RANK = """
import json, os, sys
import numpy as np
import horovod.core as hvd
from horovod.core import basics, context
from horovod.world.bootstrap import Assignment

basics.set_elastic_init(lambda settings, enter: enter(Assignment(*told, set())))
for line in sys.stdin:
    told = json.loads(line)
    hvd.init()
    world = context.current().world
    facts = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_rank(), world.host_of_rank, world.generation]
    total = hvd.allreduce(np.full(3, 1.0 + hvd.rank()), op=hvd.Sum, name="x")[0]
    hvd.shutdown()
    print(json.dumps([*facts, total]), flush=True)
"""


class Process:
    """A rank that starts and ends a generation whenever it is told to."""

    def __init__(self, environment: dict[str, str]) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", RANK], env={**clean, **environment}, **pipes)

    def go(self, told: tuple[int, int, int] | None = None) -> None:
        """`told`: in an elastic job: the generation to enter, the rank there and the size."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def facts(self) -> list[Any]:
        """Of the generation that it was told to start: rank, size, local and cross rank, hosts, number, a sum."""
        assert self.process.stdout is not None
        assert Patience().ask(functools.partial(wait, [self.process.stdout]))
        return list(json.loads(self.process.stdout.readline()))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Launcher:
    """Starts processes and knows their places, as horovodrun does."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        secret = new_secret()
        self.server = RendezvousServer(secret)
        self._end = contextlib.ExitStack()
        self._end.callback(self.server.close)
        stack.callback(self.end)
        secret_file = SecretFile(secret)
        stack.callback(secret_file.close)
        self._meeting = environment_of(
            rendezvous_address=self.server.address, rendezvous_port=self.server.port, secret_file=secret_file.path
        )

    def end(self) -> None:
        self._end.close()

    def start(self, environment: dict[str, str], **more: str) -> Process:
        process = Process({**self._meeting, **environment, **more})
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with contextlib.ExitStack() as stack:
        yield Launcher(stack)


def generation_of(*processes: Process) -> list[list[Any]]:
    for process in processes:
        process.go()
    return [process.facts() for process in processes]


def led_generation_of(launcher: Launcher, generation: int, hosts: list[Host], *members: Process) -> list[list[Any]]:
    """As the driver of an elastic job makes it: `members` are told their ranks, and the rendezvous their places."""
    places = assign_ranks(hosts, len(members))
    launcher.server.lead(generation, [dataclasses.asdict(place) for place in places])
    for rank, process in enumerate(members):
        process.go((generation, rank, len(members)))
    return [process.facts() for process in members]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_newcomer_joins_the_fifth_generation_although_it_is_its_first(launcher: Launcher, transport: str) -> None:
    def worker(number: int) -> Process:
        return launcher.start({}, HOROVOD_ELASTIC_WORKER=str(number), HOROVOD_TRANSPORT=transport)

    together, apart = [Host("localhost", 2)], [Host("here", 1), Host("there", 1)]
    first, second = worker(0), worker(1)
    for generation in range(1, 5):
        facts = led_generation_of(launcher, generation, together, first, second)
        assert facts == [[rank, 2, rank, 0, [0, 0], generation, 3.0] for rank in range(2)]
    second.kill()
    launcher.server.gone(1, "rank 1 was killed")
    newcomer = worker(2)  # its environment says nothing about its place
    facts = led_generation_of(launcher, 5, together, first, newcomer)
    assert facts == [[rank, 2, rank, 0, [0, 0], 5, 3.0] for rank in range(2)]
    facts = led_generation_of(launcher, 6, apart, newcomer, first)
    assert facts == [[rank, 2, 0, rank, [0, 1], 6, 3.0] for rank in range(2)]


def test_the_launchers_word_about_a_place_stands_over_the_environment(launcher: Launcher) -> None:
    places = assign_ranks([Host("localhost", 2)], 2)
    first, second = (launcher.start(place.environment()) for place in places)
    assert generation_of(first, second) == [[rank, 2, rank, 0, [0, 0], 0, 3.0] for rank in range(2)]
    apart = assign_ranks([Host("here", 1), Host("there", 1)], 2)
    launcher.server.assign([dataclasses.asdict(place) for place in apart])
    assert generation_of(first, second) == [[rank, 2, 0, rank, [0, 1], 1, 3.0] for rank in range(2)]


def test_a_rank_has_one_connection_to_the_rendezvous_in_its_start_and_after_it(launcher: Launcher) -> None:
    counts: list[int] = []
    answer = launcher.server._store.ask

    def ask(request: Any, now_s: float, reply: Any) -> Any:
        counts.append(len(launcher.server._connections))
        return answer(request, now_s, reply)

    launcher.server._store.ask = ask  # type: ignore[method-assign]
    ranks = [launcher.start(place.environment()) for place in assign_ranks([Host("localhost", 2)], 2)]
    generation_of(*ranks)
    assert max(counts) == 2, "a rank has a second connection"
    assert len(counts) <= 2 * 8  # requests of two ranks


def test_the_launchers_end_ends_a_start_wherever_its_ranks_wait(launcher: Launcher) -> None:
    places = assign_ranks([Host("localhost", 3)], 3)
    as_for_a_rank_that_may_come = {"HOROVOD_START_TIMEOUT": "1000"}
    ranks = [launcher.start(place.environment(), **as_for_a_rank_that_may_come) for place in places[:2]]
    for rank in ranks:
        rank.go()
    # Rank 1 waits for its host's leader, in vain.
    wait_until(lambda: launcher.server.get("world/0/member/localhost/1") is not None)
    launcher.end()
    for number, rank in enumerate(ranks):
        _, errors = patiently(lambda left_s, rank=rank: rank.process.communicate(timeout=left_s))
        assert f"rank {number} could not join the job: the rendezvous at 127.0.0.1:" in errors, errors
        # Reset: if the launcher had not read the rank's last request yet.
        assert re.search("closed the connection|reset by peer", errors), errors
