# SPDX-License-Identifier: Apache-2.0
"""Host lists and the places of ranks."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.launcher.hosts import Host, HostsError, assign_ranks, is_local, packed, parse_hosts, unpacked
from horovod.launcher.lines import MAX_LINE_BYTES, line


def test_hosts_are_read_in_order() -> None:
    assert parse_hosts("a:1, b-2.c:16") == [Host("a", 1), Host("b-2.c", 16)]
    assert parse_hosts("a,b:2") == [Host("a", 1), Host("b", 2)]


@pytest.mark.parametrize("text", ["", "a:", ":2", "a:0", "a:-1", "a:2,", "a:2;b:2", "[::1]:2", "a b:2", "a:2:3"])
def test_what_is_no_host_is_quoted(text: str) -> None:
    with pytest.raises(HostsError, match="is not a host\nhint: write name:slots"):
        parse_hosts(text)


def test_a_repeated_host_is_an_error() -> None:
    with pytest.raises(HostsError, match="host a stands in the list more than once"):
        parse_hosts("a:1,b:1,a:2")


def test_ranks_go_host_by_host_and_cross_ranks_count_hosts_that_have_the_local_rank() -> None:
    seen = assign_ranks([Host("a", 2), Host("b", 1), Host("c", 3)], 6)
    assert [(p.hostname, p.rank, p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in seen] == [
        ("a", 0, 0, 2, 0, 3),
        ("a", 1, 1, 2, 0, 2),
        ("b", 2, 0, 1, 1, 3),
        ("c", 3, 0, 3, 2, 3),
        ("c", 4, 1, 3, 1, 2),
        ("c", 5, 2, 3, 0, 1),
    ]


def test_np_counts_and_not_the_slots() -> None:
    assert [p.local_size for p in assign_ranks([Host("localhost", 4)], 2)] == [2, 2]


def test_too_few_slots() -> None:
    with pytest.raises(HostsError, match=r"5 ranks were asked for, but the hosts have 4 slots \(a:2, b:2\)"):
        assign_ranks([Host("a", 2), Host("b", 2)], 5)


@given(slots=st.lists(st.integers(1, 5), min_size=1, max_size=6), data=st.data())
def test_identities_are_consistent(slots: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, sum(slots)))
    seen = assign_ranks([Host(f"h{i}", count) for i, count in enumerate(slots)], size)
    for host in {p.hostname for p in seen}:
        there = [p for p in seen if p.hostname == host]
        assert list(unpacked(packed(there))) == [(p.rank, p.environment()) for p in there]
    assert [p.rank for p in seen] == list(range(size))
    assert len({(p.hostname, p.local_rank) for p in seen}) == size
    assert len({(p.local_rank, p.cross_rank) for p in seen}) == size
    for p in seen:
        assert sum(q.hostname == p.hostname for q in seen) == p.local_size
        assert sum(q.local_rank == p.local_rank for q in seen) == p.cross_size
        assert 0 <= p.cross_rank < p.cross_size and 0 <= p.local_rank < p.local_size


def test_what_is_common_to_a_hosts_ranks_is_said_once() -> None:
    ranks = assign_ranks([Host("localhost", 100_000)], 100_000)
    message = packed(ranks)
    assert message["own"] == ["HOROVOD_RANK", "HOROVOD_LOCAL_RANK"]
    assert message["ranks"][99_999] == [99_999, "99999", "99999"]
    assert len(line(order="start", ranks=message)) < MAX_LINE_BYTES // 4


def test_local_names() -> None:
    assert all(map(is_local, ["localhost", "127.0.0.1", socket.gethostname()]))
    assert not is_local("server1.example.org")
