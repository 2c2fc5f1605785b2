# SPDX-License-Identifier: Apache-2.0
"""How ranks learn of each other: how many bytes that takes at scale, and what is said if something is wrong."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from horovod.core.exceptions import StartError
from horovod.launcher.options.hosts import Host, RankIdentity, assign_ranks
from horovod.world import meeting
from horovod.world.channel import MAX_FRAME_BYTES, pack
from horovod.world.meeting import Digest, Meeting, read_digest
from horovod.world.rendezvous import Rendezvous
from horovod.world.rendezvous_store import Store
from horovod.world.topology import Topology

SETTINGS = {
    "version": "1.0",
    "size": 0,
    "fusion_threshold_bytes": 128 << 20,
    "transport": "auto",
    "on_gpus": "allreduce=best levels=none",
    "pretend_hosts": "",
    "host_group_size": 0,
    "relays_above_hosts": 256,
    "replica_check_steps": 1,
    "replica_check_whole": False,
    "same_rows_check": True,
    "finite_check": "off",
    "profile": "none",
    "dynamic_process_sets": False,
    "process_sets": [],
}


class Counting(Rendezvous):
    """A rank's rendezvous without a connection: counts what would have gone through one."""

    def __init__(self, store: Store) -> None:
        super().__init__("127.0.0.1", 0, b"")
        self._store = store
        self.frames: list[int] = []

    def _exchange(self, request: dict[str, Any], deadline: float) -> Any:
        answers: list[dict[str, Any]] = []
        sent = pack(request, "server")
        self._store.ask(json.loads(sent[4:]), 0.0, answers.append)
        self._store.expire(float("inf"))  # nobody comes meanwhile
        received = pack(answers[0], "rank")
        self.frames += [len(sent), len(received)]
        return json.loads(received[4:])


class Rank:
    def __init__(self, store: Store, place: RankIdentity, **changed: Any) -> None:
        self.rendezvous = Counting(store)
        self.place = place
        self.record = {
            "rank": place.rank,
            "hostname": place.hostname,
            "local_rank": place.local_rank,
            "local_size": place.local_size,
            "address": f"10.0.{place.cross_rank}.1",
            "port": 30_000 + place.rank,
            "problem": None,
            "apart": None,
            "settings": {**SETTINGS, "size": place.size},
        }
        for name, value in changed.items():
            (self.record if name in self.record else self.record["settings"])[name] = value
        fields = {name: getattr(place, name) for name in meeting.Identity.__dataclass_fields__}
        identity = meeting.Identity(**fields)
        self.meeting = Meeting(self.rendezvous, identity, place.hostname, 0, time.monotonic() + 60, 7.0)

    def enter(self) -> None:
        self.rendezvous.enter(self.place.rank, str(self.place.rank), {"pid": 12345, "machine": self.place.hostname})


def met(ranks: list[Rank], readers: int = 1000) -> dict[str, Any]:
    """All of them meet, in an order in which nobody has to wait. Returns the digest, which so many leaders read."""
    leaders = [rank for rank in ranks if rank.meeting.leads]
    for rank in ranks:
        rank.enter()
    for rank in leaders:
        rank.meeting.offer("horovod-" + "0" * 32, None)
    for rank in ranks:
        if not rank.meeting.leads:
            assert rank.meeting.leader()["local_address"] == "horovod-" + "0" * 32
            rank.meeting.report(rank.record)
    for rank in leaders:
        rank.meeting.gather(rank.record)
    (judge,) = [rank for rank in leaders if rank.meeting.judges]
    digest = judge.meeting.judge()
    for rank in leaders[:readers]:
        if rank is not judge:
            assert rank.meeting.digest() == digest
    return digest


def world(hosts: int, ranks_on_each: int, changed: dict[int, dict[str, Any]] | None = None) -> list[Rank]:
    store = Store()
    places = assign_ranks([Host(f"node{n:04}", ranks_on_each) for n in range(hosts)], hosts * ranks_on_each)
    return [Rank(store, place, **(changed or {}).get(place.rank, {})) for place in places]


def test_the_bytes_of_a_start_grow_with_ranks_times_hosts_and_not_with_the_square_of_the_ranks() -> None:
    ranks = world(100, 20)
    digest = read_digest(met(ranks), 2000)
    assert digest.topology.host_of_rank == tuple(rank // 20 for rank in range(2000))
    assert digest.places[1999] == ("10.0.99.1", 31_999)
    leaders = [rank for rank in ranks if rank.meeting.leads]
    members = [rank for rank in ranks if not rank.meeting.leads]
    # A rank: as much in a job of any size. A leader: one record of each rank of its host, and one line of each rank.
    assert max(sum(rank.rendezvous.frames) for rank in members) < 2_000
    assert max(sum(rank.rendezvous.frames) for rank in leaders[1:]) < 40 * 2000 + 1_000 * 20
    assert max(max(rank.rendezvous.frames) for rank in ranks) < MAX_FRAME_BYTES / 2
    total = sum(sum(rank.rendezvous.frames) for rank in ranks)
    assert total < 2_000 * 2000 + 40 * 2000 * 100, total  # 2.0 GB if each rank fetches each record
    assert max(len(rank.rendezvous.frames) for rank in ranks) <= 12


def test_a_rank_says_as_much_in_a_world_of_any_size() -> None:
    sums = []
    for hosts in (2, 40):
        ranks = world(hosts, 8)
        met(ranks)
        sums.append(sum(ranks[1].rendezvous.frames))
    assert sums[1] - sums[0] < 20  # the numbers have more digits


def test_no_message_is_too_long_with_each_rank_on_a_host_of_its_own() -> None:
    ranks = world(3000, 1)
    assert len(read_digest(met(ranks, readers=2), 3000).places) == 3000
    assert max(max(rank.rendezvous.frames) for rank in ranks) < MAX_FRAME_BYTES / 2


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({3: {"transport": "tcp"}}, r"disagree about HOROVOD_TRANSPORT: auto on ranks 0, 1, 2, tcp on rank 3\nhint:"),
        (
            {3: {"on_gpus": "allreduce=nccl levels=none"}},
            r"disagree about a setting for GPUs \(horovodrun --explain gpu\): allreduce=best levels=none on ranks 0, "
            r"1, 2, allreduce=nccl levels=none on rank 3\nhint:",
        ),
        (
            {0: {"replica_check_steps": 0}},
            "disagree about HOROVOD_REPLICA_CHECK_STEPS: 0 on rank 0, 1 on ranks 1, 2, 3",
        ),
        ({1: {"host_group_size": 2}}, "disagree about HOROVOD_HOST_GROUP_SIZE: 0 on ranks 0, 2, 3, 2 on rank 1"),
        ({0: {"profile": "p.json"}}, "disagree about HOROVOD_PROFILE: p.json on rank 0, none on ranks 1, 2, 3"),
        ({2: {"version": "0.9"}}, r"the installed version of Horovod: 1.0 on ranks 0, 1, 3, 0.9 on rank 2"),
        ({1: {"local_size": 3}}, r"rank 1 says it is local rank 1 of 3, but on host 'node0000' it is 1 of 2"),
        (
            {2: {"problem": "rank 2: no network"}, 3: {"problem": "rank 3: none"}},
            "not connect to each other: rank 2: no network; rank 3: none\n",
        ),
        (
            {r: {"transport": "shm", "apart": "rank 1: no memory" if r == 1 else None} for r in range(4)},
            "HOROVOD_TRANSPORT=shm, but the ranks of this host cannot share memory: rank 1: no memory",
        ),
    ],
)
def test_what_does_not_fit_is_the_same_error_for_all(changed: dict[int, dict[str, Any]], text: str) -> None:
    digest = met(world(2, 2, changed))  # which asserts that all leaders get this one
    with pytest.raises(StartError, match=text):
        read_digest(digest, 4)


@pytest.mark.parametrize(
    ("of_ranks", "places"),
    [
        ([[[[0, 1], False]]] * 4, [[[0, 1]]]),
        ([[[[0, 1], rank < 2]] for rank in range(4)], [[[0, 1]]]),  # the others have made no communicator
        ([[[[rank % 2, 2 + rank % 2], True], [[0], False]] for rank in range(4)], [[[0, 2], [1, 3]], [[0]]]),
        ([[[[0, 1] if rank < 2 else [], True]] for rank in range(4)], [[[0, 1]]]),  # ranks 2 and 3 are in no group
        ([[[[], True]]] * 4, [[]]),
        ([[[[], False]]] * 4, [[[]]]),  # all ranks
    ],
)
def test_process_sets_that_ranks_agree_on(of_ranks: list[Any], places: list[Any]) -> None:
    changed = {rank: {"process_sets": sets} for rank, sets in enumerate(of_ranks)}
    assert read_digest(met(world(2, 2, changed)), 4).process_sets == places


@pytest.mark.parametrize(
    "of_ranks",
    [
        [[[[rank % 2, 2 + rank % 2], False]] for rank in range(4)],  # nobody has said that these are groups
        [[[[rank % 2, 2 + rank % 2], rank > 0]] for rank in range(4)],
        [[[[0, 1] if rank < 2 else [1, 2, 3], True]] for rank in range(4)],
        [[[[0, 1] if rank < 3 else [2, 3], True]] for rank in range(4)],  # rank 2 is in another group than it says
        [[[[0, 1], True]], [[[0, 1], True]], [], []],
    ],
)
def test_process_sets_that_differ_are_told_with_the_way_out(of_ranks: list[Any]) -> None:
    changed = {rank: {"process_sets": sets} for rank, sets in enumerate(of_ranks)}
    with pytest.raises(StartError, match=r"(?s)sets given to init: .* on ranks? 0.*hint: every rank must list all"):
        read_digest(met(world(2, 2, changed)), 4)


def test_ranks_that_share_memory_need_no_port() -> None:
    without = {1: {"problem": "rank 1: no network"}}
    assert read_digest(met(world(1, 2, without)), 2).topology == Topology((0, 0))
    for changed in ({"transport": "tcp"}, {"apart": "rank 1: no memory"}):
        everywhere = {0: {name: value for name, value in changed.items() if name == "transport"}}
        with pytest.raises(StartError, match="rank 1: no network"):
            read_digest(met(world(1, 2, {**everywhere, 1: {**without[1], **changed}})), 2)


def test_a_host_whose_ranks_cannot_share_memory_is_divided() -> None:
    digest = read_digest(met(world(2, 2, {3: {"apart": "rank 3: no memory"}})), 4)
    assert digest.topology == Topology((0, 0, 1, 2))


def test_two_ranks_with_one_place_are_told() -> None:
    ranks = world(2, 1)
    store = ranks[0].rendezvous._store
    same = Rank(store, RankIdentity(1, 2, 0, 1, 1, 2, "node0000"))
    ranks[0].meeting.offer("here", None)
    with pytest.raises(StartError, match=r"rank 1 says that it is local rank 0 of host 'node0000', and so does rank 0"):
        same.meeting.offer("there", None)


def test_who_has_not_come_is_named_and_if_all_have_what_was_waited_for() -> None:
    ranks = world(2, 2)
    for rank in (ranks[0], ranks[3]):
        rank.enter()
    with pytest.raises(StartError, match=r"rank 0 waited 7 s in init for ranks 1, 2 of 4, .*; here: ranks 0, 3\nhint:"):
        ranks[0].meeting.gather(ranks[0].record)
    for rank in (ranks[1], ranks[2]):
        rank.enter()
    with pytest.raises(StartError, match=r"rank 0 waited 7 s in init for local rank 1 of host 'node0000', though all"):
        ranks[0].meeting.gather(ranks[0].record)
    with pytest.raises(StartError, match="rank 2 waited 7 s in init for the leader of host number 0, though all 4"):
        ranks[2].meeting.digest()
    with pytest.raises(StartError, match="rank 0 waited 7 s in init for rank 2 to connect, .*\nhint: .* firewall"):
        ranks[0].meeting.finish(0, [0, 2], None)
    with pytest.raises(StartError, match="rank 3 waited 7 s in init for local rank 0 of host 'node0001', though all"):
        ranks[3].meeting.leader()


def test_the_leaders_learn_what_went_wrong_in_linking() -> None:
    ranks = world(3, 1)
    others = ranks[1:]
    for rank, problem in zip(others, (None, "rank 2: refused"), strict=True):
        rank.rendezvous.put(f"world/0/linked/{rank.place.rank}", {"problem": problem})
    outcome = ranks[0].meeting.finish(0, [0, 1, 2], None)
    assert outcome == {"problem": "rank 2: refused"}
    assert [rank.meeting.finish(rank.place.rank, [0, 1, 2], None) for rank in others] == [outcome] * 2


GOOD = {
    "problem": None,
    "code": "",
    "hosts": [[0, 2], [1]],
    "places": [["a", 1], ["b", 2], ["c", 3]],
    "process_sets": [[[0, 2], [1]], [[0, 1]]],
}


def test_a_digest_is_read() -> None:
    assert read_digest(GOOD, 3) == Digest(Topology((0, 1, 0)), [("a", 1), ("b", 2), ("c", 3)], GOOD["process_sets"])


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {**GOOD, "problem": 7},
        {**GOOD, "hosts": [[0, 1], [1]]},
        {**GOOD, "hosts": [[0, 1], ["2"]]},
        {**GOOD, "hosts": [[0, 1], [[2]]]},
        {**GOOD, "hosts": [0, 1, 2]},
        {**GOOD, "hosts": ["b", [0, 1], [2]]},
        {**GOOD, "places": [["a", 1]]},
        {**GOOD, "places": [["a", 1], ["b", 2], ["c", "3"]]},
        {**GOOD, "places": [["a", 1], ["b", 2], None]},
        {**GOOD, "process_sets": [[[0, 2], ["1"]]]},
        {**GOOD, "process_sets": [[0, 2]]},
    ],
)
def test_a_digest_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(StartError, match="cannot be read"):
        read_digest(wrong, 3)
