# SPDX-License-Identifier: Apache-2.0
"""Worlds are formed by real processes: links carry bytes both ways, and every way to fail names its cause on every
rank."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator

import pytest
from support.world import Outcome, World, WorldPool

from horovod.core import native
from horovod.settings import Settings
from horovod.world import bootstrap, links


@pytest.fixture(scope="module")
def worlds() -> Iterator[WorldPool]:
    """Worlds of these tests alone, whose generations are counted from 0."""
    pool = WorldPool()
    yield pool
    pool.close()


def connect_and_exchange() -> dict[str, object]:
    """Connects, sends this rank's number over each link and says who answered."""
    world = bootstrap.connect(Settings.from_environment())
    try:
        between_ranks = [link for link in world.links if link.purpose != links.Purpose.OPENER]
        for link in between_ranks:
            link.socket.sendall(bytes([world.identity.rank, link.purpose, link.index]))
        heard = [
            (link.peer, int(link.purpose), link.index, tuple(link.socket.recv(3, socket.MSG_WAITALL)))
            for link in between_ranks
        ]
        for link in between_ranks:
            assert link.socket.gettimeout() is None
        names = ("generation", "transport", "host_of_rank")
        return {
            **vars(world.identity),
            **{name: getattr(world, name) for name in names},
            "heard": heard,
            "opens_data_links": world.opener is not None,
        }
    finally:
        world.close()


def errors(outcomes: list[Outcome]) -> list[str]:
    assert not any(outcome.ok or outcome.died for outcome in outcomes), outcomes
    assert all(isinstance(outcome.error, ValueError) for outcome in outcomes), outcomes
    return [str(outcome.error) for outcome in outcomes]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_of_one_host_get_a_local_link_to_the_leader(worlds: WorldPool, size: int) -> None:
    for generation in (0, 1):
        seen = worlds(size).run(connect_and_exchange)
        assert [one["rank"] for one in seen] == list(range(size))
        assert all(one["transport"] == "shm" and one["host_of_rank"] == [0] * size for one in seen)
        assert all(one["generation"] == generation for one in seen)
        assert seen[0]["heard"] == [(peer, 0, 0, (peer, 0, 0)) for peer in range(1, size)]
        assert all(one["heard"] == [(0, 0, 0, (0, 0, 0))] for one in seen[1:])


@pytest.mark.parametrize("size", [2, 4])
def test_tcp_gives_rank_0_control_and_beat_links_to_each_and_no_data_link(worlds: WorldPool, size: int) -> None:
    seen = worlds(size, {"HOROVOD_TRANSPORT": "tcp"}).run(connect_and_exchange)
    for rank, one in enumerate(seen):
        assert one["transport"] == "tcp" and one["host_of_rank"] == list(range(size))
        expected = []
        for peer in range(size):
            if peer != rank:
                expected += [(peer, 1, 0, (peer, 1, 0))] if 0 in (peer, rank) else []
                expected += [(peer, 3, 0, (peer, 3, 0))] if 0 in (peer, rank) else []
        assert one["heard"] == expected and one["opens_data_links"]
        assert (one["local_rank"], one["local_size"], one["cross_rank"], one["cross_size"]) == (0, 1, rank, size)


def heard_by(rank: int, links: dict[int, list[tuple[int, int]]]) -> list[tuple[object, ...]]:
    """What connect_and_exchange hears over these links, as (purpose, index) by peer."""
    return [(peer, *kind, (peer, *kind)) for peer in sorted(links) for kind in sorted(links[peer])]


LOCAL, LEADERS = [(0, 0)], [(1, 0), (3, 0)]


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        ("2+2", [{1: LOCAL, 2: LEADERS}, {0: LOCAL}, {3: LOCAL, 0: LEADERS}, {2: LOCAL}]),
        ("3+1", [{1: LOCAL, 2: LOCAL, 3: LEADERS}, {0: LOCAL}, {0: LOCAL}, {0: LEADERS}]),
    ],
)
def test_hosts_of_several_ranks_are_linked_by_their_leaders_alone(
    worlds: WorldPool, transport: str, expected: list[dict[int, list[tuple[int, int]]]]
) -> None:
    seen = worlds(4, {"HOROVOD_TRANSPORT": transport}).run(connect_and_exchange)
    sizes = [int(size) for size in transport.split("+")]
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    for rank, one in enumerate(seen):
        assert one["transport"] == "hierarchical" and one["host_of_rank"] == hosts
        assert one["heard"] == heard_by(rank, expected[rank])
        local_rank = hosts[:rank].count(hosts[rank])
        assert one["opens_data_links"] == (local_rank < min(sizes))  # these may carry data to other hosts
        assert (one["local_rank"], one["local_size"]) == (local_rank, sizes[hosts[rank]])
        others = [size > local_rank for size in sizes]
        assert (one["cross_rank"], one["cross_size"]) == (sum(others[: hosts[rank]]), sum(others))


def test_tcp_on_one_host_shares_memory_for_everything_but_data(worlds: WorldPool) -> None:
    seen = worlds(2, {"HOROVOD_TRANSPORT": "tcp", "HOROVOD_PRETEND_HOSTS": "2"}).run(connect_and_exchange)
    for rank, one in enumerate(seen):
        assert one["transport"] == "tcp" and one["host_of_rank"] == [0, 0]
        assert one["heard"] == heard_by(rank, {1 - rank: LOCAL}) and one["opens_data_links"]


def test_ranks_that_cannot_share_memory_are_hosts_of_their_own(worlds: WorldPool) -> None:
    world = worlds(4, {"HOROVOD_TRANSPORT": "2+2"})
    seen = world.run(fail_to_attach)
    assert [one["host_of_rank"] for one in seen] == [[0, 1, 2, 2]] * 4
    assert "cannot share memory" in world.output(0) and "cannot share memory" not in world.output(2)


@pytest.mark.parametrize(
    ("transport", "why"),
    [
        ("rdma", "HOROVOD_TRANSPORT=rdma cannot be used: there is no such communicator"),
        ("mpi", "HOROVOD_TRANSPORT=mpi cannot be used: mpi4py is not installed"),
        ("hierarchical", "HOROVOD_TRANSPORT=hierarchical cannot be used: its members must be on several hosts"),
        ("2+2 shm", "HOROVOD_TRANSPORT=shm cannot be used: its members must be on one host, and are on 2 hosts"),
    ],
)
def test_a_transport_that_does_not_fit_is_refused_by_every_rank(worlds: WorldPool, transport: str, why: str) -> None:
    for text in errors(worlds(4, {"HOROVOD_TRANSPORT": transport}).run_each(connect_and_exchange)):
        assert why in text and "hint:" in text


def test_pretended_hosts_must_have_room_for_all_ranks(worlds: WorldPool) -> None:
    for text in errors(worlds(2, {"HOROVOD_PRETEND_HOSTS": "2,1"}).run_each(connect_and_exchange)):
        assert "HOROVOD_PRETEND_HOSTS=2,1 divides 3 ranks, but there are 2" in text and "hint:" in text


def test_one_rank_needs_no_link(worlds: WorldPool) -> None:
    (seen,) = worlds(1).run(connect_and_exchange)
    assert seen["transport"] == "loopback" and seen["heard"] == [] and seen["host_of_rank"] == [0]


def fail_to_attach() -> dict[str, object]:
    if os.environ["HOROVOD_RANK"] == "1":
        with contextlib.ExitStack() as stack:
            real = links.attach
            stack.callback(setattr, links, "attach", real)
            links.attach = lambda name, *rest: real(name + "x", *rest)  # a name where nobody listens
            return connect_and_exchange()
    return connect_and_exchange()


def test_auto_falls_back_to_tcp_on_all_ranks_where_one_cannot_attach(worlds: WorldPool) -> None:
    world = worlds(3)
    seen = world.run(fail_to_attach)
    assert [one["transport"] for one in seen] == ["tcp"] * 3
    assert "cannot share memory" in world.output(0) and "rank 1" in world.output(0)
    assert "cannot share memory" not in world.output(2)


def test_forced_shm_that_is_not_to_be_had_says_why_on_every_rank(worlds: WorldPool) -> None:
    for text in errors(worlds(3, {"HOROVOD_TRANSPORT": "shm"}).run_each(fail_to_attach)):
        assert "HOROVOD_TRANSPORT=shm" in text and "rank 1: the local socket of rank 0 cannot be reached" in text


def test_ranks_that_disagree_on_a_setting_are_told_which() -> None:
    with World(3, env_of_rank=lambda rank: {"HOROVOD_FUSION_THRESHOLD": str(64 + rank // 2)}) as world:
        for text in errors(world.run_each(connect_and_exchange)):
            assert "HOROVOD_FUSION_THRESHOLD: 64 on ranks 0, 1, 65 on rank 2" in text


def test_ranks_of_two_builds_of_one_version_do_not_start() -> None:
    def of_another_build() -> object:
        if os.environ["HOROVOD_RANK"] == "1":
            native.build_id = lambda: "0123456789ab"  # type: ignore[assignment]
        return connect_and_exchange()

    with World(2) as world:
        for text in errors(world.run_each(of_another_build)):
            assert re.search(
                r"the installed version of Horovod: \S+ \(build \w+\) on rank 0, \S+ \(build 0123456789ab\)", text
            )


def test_a_wrong_secret_is_an_error_in_that_rank_and_the_server_keeps_running() -> None:
    def with_the_secret(kind: str) -> object:
        if os.environ["HOROVOD_RANK"] != "1" or kind == "right":
            return connect_and_exchange()
        descriptor = os.memfd_create("wrong")
        os.fchmod(descriptor, 0o600 if kind == "wrong" else 0o644)
        os.write(descriptor, bytes(32))
        path = "" if kind == "missing" else f"/proc/self/fd/{descriptor}"
        return bootstrap.connect(Settings.from_environment({**os.environ, "HOROVOD_SECRET_FILE": path}))

    with World(2, {"HOROVOD_START_TIMEOUT": "3"}) as world:
        for kind, expected in (
            ("wrong", "proved another secret than this process holds"),
            ("missing", "HOROVOD_SECRET_FILE is not set"),
            ("open", "is open to other users (mode 0644)"),
        ):
            assert expected in errors(world.run_each(with_the_secret, kind))[1]
        assert world.rendezvous.refused == 1
        assert [one["transport"] for one in world.run(with_the_secret, "right")] == ["shm", "shm"]


def test_two_processes_that_claim_one_rank_are_told() -> None:
    with World(2, {"HOROVOD_START_TIMEOUT": "5"}, env_of_rank=lambda rank: {"HOROVOD_RANK": "0"}) as world:
        outcomes = world.run_each(connect_and_exchange)
    assert sum("two processes are rank 0" in text for text in errors(outcomes)) == 1
