# SPDX-License-Identifier: Apache-2.0
"""The places of ranks that no launcher has placed: from what they say of their machines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from horovod.core.exceptions import StartError
from horovod.world.meeting import Meeting
from horovod.world.rendezvous import RankGone, Rendezvous
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.secret import new_secret
from horovod.world.topology import Identity, places_of

SECRET = new_secret()


def whereabouts(*machines: str) -> list[dict[str, Any]]:
    """`name/machine` for each rank."""
    return [dict(zip(("hostname", "machine"), one.split("/"), strict=True)) for one in machines]


def shown(places: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return [tuple(place[name] for name in names) for place in places]


def test_ranks_in_any_order_over_hosts_of_different_sizes() -> None:
    assert shown(places_of(whereabouts("b/1", "a/2", "b/1", "b/1", "a/2", "c/3"))) == [
        ("b", 0, 6, 0, 3, 0, 3),
        ("a", 1, 6, 0, 2, 1, 3),
        ("b", 2, 6, 1, 3, 0, 2),
        ("b", 3, 6, 2, 3, 0, 1),
        ("a", 4, 6, 1, 2, 1, 2),
        ("c", 5, 6, 0, 1, 2, 3),
    ]


def test_machines_of_one_name_are_different_hosts() -> None:
    places = places_of(whereabouts("node/1", "node/2", "node/1", "node/3"))
    assert [place["hostname"] for place in places] == ["node", "node (2)", "node", "node (3)"]
    assert [place["local_size"] for place in places] == [2, 1, 2, 1]


class Ranks:
    """Ranks that ask for their places, each on a thread."""

    def __init__(self, server: RendezvousServer, timeout_s: float = 60.0) -> None:
        self.server = server
        self.timeout_s = timeout_s

    def ask(self, here: dict[int, dict[str, Any]], size: int) -> dict[int, Any]:
        """The place, or the error, of each of these ranks."""
        got: dict[int, Any] = {}
        all_are_here = threading.Barrier(len(here))

        def run(rank: int) -> None:
            rendezvous = Rendezvous("127.0.0.1", self.server.port, SECRET)
            try:
                generation = rendezvous.enter(rank, f"process {rank}")["generation"]
                all_are_here.wait()  # before anyone's time begins
                identity = Identity(rank, size, 0, 1, 0, 1)
                deadline = time.monotonic() + self.timeout_s
                meeting = Meeting(rendezvous, identity, "", generation, deadline, self.timeout_s)
                got[rank] = meeting.place(here[rank])
            except (StartError, RankGone) as error:
                got[rank] = error
            finally:
                rendezvous.close()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in here]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return got


@pytest.fixture
def server() -> Iterator[RendezvousServer]:
    one = RendezvousServer(SECRET)
    yield one
    one.close()


def reaching(*addresses: str) -> dict[str, Any]:
    return {"hostname": "a", "machine": "1", "reached": list(addresses)}


def test_the_ranks_meet_at_the_first_address_that_all_reach(server: RendezvousServer) -> None:
    here = {0: reaching("10.0.0.1", "10.1.0.1", "127.0.0.1"), 1: reaching("10.1.0.1", "10.0.0.1")}
    here[2] = reaching("10.1.0.1")
    got = Ranks(server).ask(here, 3)
    assert [got[rank]["address"] for rank in range(3)] == ["10.1.0.1"] * 3
    assert [got[rank]["local_rank"] for rank in range(3)] == [0, 1, 2]


def test_addresses_that_have_none_in_common_are_an_error_for_all(server: RendezvousServer) -> None:
    got = Ranks(server).ask({0: reaching("10.0.0.1", "10.1.0.1"), 1: reaching("10.0.0.1"), 2: reaching("10.1.0.1")}, 3)
    for rank in range(3):
        assert str(got[rank]).startswith("no address of rank 0 is reached by all ranks; "), got
        assert "rank 1: 10.0.0.1" in str(got[rank]) and "HOROVOD_GLOO_IFACE" in str(got[rank])


def test_a_rank_that_says_nonsense_is_an_error_for_all(server: RendezvousServer) -> None:
    got = Ranks(server).ask({0: reaching("10.0.0.1"), 1: {"hostname": 1}}, 2)
    assert all("published a record that cannot be read: hostname, machine, reached" in str(one) for one in got.values())


def test_a_missing_rank_is_named_to_all(server: RendezvousServer) -> None:
    got = Ranks(server, timeout_s=1.0).ask({0: reaching("a"), 2: reaching("a")}, 3)
    assert all("in init for rank 1 of 3, which has not called init" in str(one) for one in got.values()), got


def entered(server: RendezvousServer, rank: int) -> Rendezvous:
    rendezvous = Rendezvous("127.0.0.1", server.port, SECRET)
    rendezvous.enter(rank, f"process {rank}", {"pid": 40 + rank, "machine": "a"})
    return rendezvous


@pytest.mark.parametrize("how", ["ends", "gives up"])
def test_a_server_without_a_launcher_notices_who_ends_in_init(how: str) -> None:
    server = RendezvousServer(SECRET, notices_ends=True)
    waiting, other = entered(server, 0), entered(server, 1)
    if how == "gives up":
        other.abandon(0, 1, "process 1", "no memory")
    other.close()
    with pytest.raises(RankGone) as gone:
        waiting.get("never", 60)
    assert gone.value.rank == 1
    ended = "rank 1 (process 41 on a) ended in init"
    assert str(gone.value) == ("rank 1 gave up: no memory" if how == "gives up" else ended)
    # It may come again.
    entered(server, 1).close()
    waiting.close()
    server.close()


def test_a_rank_that_ends_after_its_start_is_the_engines_business() -> None:
    server = RendezvousServer(SECRET, notices_ends=True)
    waiting, other = entered(server, 0), entered(server, 1)
    other.started()
    other.close()
    # A second process of a rank has no start that could fail.
    second = Rendezvous("127.0.0.1", server.port, SECRET)
    assert "other" in second.enter(0, "another process")
    second.close()
    third = entered(server, 2)  # has been served after them
    assert waiting.get("never", 0.05) is None
    third.started()
    for rendezvous in (third, waiting):
        rendezvous.close()
    server.close()
