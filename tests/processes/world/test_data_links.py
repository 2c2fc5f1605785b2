# SPDX-License-Identifier: Apache-2.0
"""Data links are opened by the first collective that uses them: which ones, counted by sockets, and how that fails."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.patience import LIMIT_S, Patience, wait_until
from support.ports import open_files
from support.world import World, WorldPool

import horovod.core as hvd
from horovod.core import context
from horovod.world import links
from horovod.world.channel import AuthenticationError, authenticate_client


def own_sockets(state: str) -> int:
    """This process' TCP sockets in a state of the kernel's, but for the connection to the rendezvous."""
    own = {name[8:-1] for name in open_files() if name.startswith("socket:")}
    rendezvous = f":{int(os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT']):04X}"
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(row[9] in own and row[3] == state and not row[2].endswith(rendezvous) for row in rows)


def connected_sockets() -> int:
    return own_sockets("01")


def listening_sockets() -> int:
    return own_sockets("0A")


# Each rank counts when all have ended the step, and none has begun the next one: a faster rank would open its links.
def broadcast_once() -> None:
    assert hvd.broadcast(np.full(10, float(hvd.rank())), 0, name="b").max() == 0


def reduce_once() -> None:
    for size in (3, 3_000_000):
        assert hvd.allreduce(np.ones(size, np.float32), op=hvd.Sum, name=f"a.{size}").max() == hvd.size()


def reduce_and_gather() -> None:
    for step in range(50):
        hvd.allreduce(np.ones(1 + step % 3), name=f"x.{step % 3}")
        hvd.allgather(np.ones(1 + hvd.rank()), name="g")


CONTROL, DATA = 2, 2  # sockets of a leader with rank 0; of a pair that moves data


@pytest.mark.parametrize(
    ("transport", "control", "tree", "all_pairs"),
    [
        ("4", [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]),
        ("2+2", [1, 0, 1, 0], [1, 0, 1, 0], [1, 1, 1, 1]),  # all ranks of a host carry large allreduces
        ("tcp", [3, 1, 1, 1], [2, 1, 2, 1], [3, 3, 3, 3]),
    ],
)
def test_a_collective_opens_the_links_that_it_uses_and_init_none(
    worlds: WorldPool, transport: str, control: list[int], tree: list[int], all_pairs: list[int]
) -> None:
    world = worlds(4, {} if transport == "4" else {"HOROVOD_TRANSPORT": transport})
    started = [CONTROL * count for count in control]
    by_tree = [CONTROL * own + DATA * count for own, count in zip(control, tree, strict=True)]
    used = [CONTROL * own + DATA * count for own, count in zip(control, all_pairs, strict=True)]
    for _ in range(2):
        for step, counts in (
            (hvd.init, started),
            (broadcast_once, by_tree),
            (reduce_once, used),
            (reduce_and_gather, used),
            (hvd.shutdown, [0] * 4),
        ):
            world.run(step)
            # A rank that has waited for a slow one's link may still be about to close the connection of its wait.
            wait_until(lambda: world.run(connected_sockets) == counts, lambda: (step, world.run(connected_sockets)))  # noqa: B023


def test_a_process_set_of_two_ranks_opens_their_links_alone() -> None:
    def reduce_in_a_set() -> list[int]:
        hvd.init(process_sets=[pair := hvd.ProcessSet([1, 2])])
        before = connected_sockets()
        if hvd.rank() in pair.ranks:
            assert hvd.allreduce(np.ones(3), op=hvd.Sum, name="x", process_set=pair)[0] == 2
        hvd.barrier()
        return [before, connected_sockets()]

    with World(4, {"HOROVOD_TRANSPORT": "2+2"}) as world:
        before, after = zip(*world.run(reduce_in_a_set), strict=True)
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, DATA, DATA, 0]


def work(victim: int, kind: str, by: str) -> Any:
    """The first allreduce; `victim` does something to itself when a data link is opened `by` it or to it."""
    real_connect, real_serve = links.Mesh.link_with, links.Mesh._serve

    def happens() -> None:
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[kind])

    def connect(mesh: Any, peer: int, place: Any, purpose: Any, *rest: Any) -> Any:
        if purpose == links.Purpose.DATA:
            if kind == "wrong place":
                place = ("127.0.0.1", 1)
            elif kind == "deaf":
                mesh.close()
                time.sleep(600)
            else:
                happens()
        return real_connect(mesh, peer, place, purpose, *rest)

    def serve(mesh: Any, channel: Any) -> None:
        if not hvd.is_initialized():
            real_serve(mesh, channel)
        elif kind == "silent":
            connection = channel.detach()
            while connection.recv(1000):  # until the other side has enough
                pass
            connection.close()
        else:
            happens()

    if int(os.environ["HOROVOD_RANK"]) == victim:
        if by == "connects":
            links.Mesh.link_with = connect  # type: ignore[method-assign]
        else:
            links.Mesh._serve = serve  # type: ignore[method-assign]
    hvd.init()
    return hvd.allreduce(np.ones(3), op=hvd.Sum, name="first")[0]


def test_a_link_that_cannot_be_opened_names_both_ranks_and_their_addresses() -> None:
    with World(2, {"HOROVOD_TRANSPORT": "tcp"}) as world:
        outcomes = world.run_each(work, 1, "wrong place", "connects")
        for outcome in outcomes:
            assert (
                "rank 1 at 127.0.0.1 could not open a data link with rank 0: rank 0 at 127.0.0.1:1 cannot be reached: "
                "Connection refused"
            ) in str(outcome.error), outcome
            assert type(outcome.error).__name__ == "RankLostError"
            assert "\nhint: if that rank has not ended, a firewall between the two hosts may" in str(outcome.error)
            assert str(outcome.error).endswith("\nmore: horovodrun --explain start-connection")


@pytest.mark.parametrize(("victim", "by"), [(1, "connects"), (0, "accepts")])
@pytest.mark.parametrize("kind", ["killed", "stopped"])
def test_a_rank_that_is_lost_while_links_are_opened_is_a_lost_rank(victim: int, by: str, kind: str) -> None:
    env = {"HOROVOD_TRANSPORT": "tcp", "HOROVOD_FROZEN_TIMEOUT_SECONDS": "1", "HOROVOD_LOST_TIMEOUT_SECONDS": "2"}
    env["HOROVOD_START_TIMEOUT"] = "1000"  # which it does not wait for
    with World(2, env) as world:
        call = world.start(work, victim, kind, by)
        assert Patience().ask(world.connections[1 - victim].poll), world.stacks()
        answer = world.answer(1 - victim)
        assert type(answer.error).__name__ == "RankLostError" and f"rank {victim} " in str(answer.error), answer
        world.kill(victim)
        call._outcomes[1 - victim] = answer
        call.outcomes()


def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_a_start_may_take() -> None:
    with World(2, {"HOROVOD_TRANSPORT": "tcp", "HOROVOD_START_TIMEOUT": "2"}) as world:
        call = world.start(work, 0, "silent", "accepts")
        for outcome in call.outcomes():
            assert "could not open a data link with rank 0: rank 0 at 127.0.0.1:" in str(outcome.error), outcome
            assert "did not answer in time" in str(outcome.error)


def test_a_rank_that_neither_connects_nor_listens_is_not_waited_for() -> None:
    with World(2, {"HOROVOD_TRANSPORT": "tcp"}) as world:
        call = world.start(work, 1, "deaf", "connects")
        answer = world.answer(0)
        assert "could not open a data link with rank 1: rank 1 at 127.0.0.1:" in str(answer.error), answer
        world.kill(1)
        call._outcomes[0] = answer
        call.outcomes()


def test_a_stranger_at_the_port_of_data_links_is_refused() -> None:
    def port() -> int:
        hvd.init()
        opener = context.current().world.opener
        assert opener is not None
        return int(opener._mesh.port)

    def reduce() -> float:
        return float(hvd.allreduce(np.ones(3), op=hvd.Sum, name="x")[0])

    with World(2, {"HOROVOD_TRANSPORT": "tcp"}) as world:
        address = ("127.0.0.1", world.run(port)[0])
        with pytest.raises(AuthenticationError):
            authenticate_client(socket.create_connection(address), b"w" * 32, "link", time.monotonic() + LIMIT_S, "it")
        assert world.run(reduce) == [2.0, 2.0]
        assert world.run(listening_sockets) == [0, 0]  # all of their links are open
