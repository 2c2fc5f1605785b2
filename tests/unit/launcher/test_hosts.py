# SPDX-License-Identifier: Apache-2.0
"""Host lists and the places of ranks."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.launcher.host.lines import MAX_LINE_BYTES, line
from horovod.launcher.options import hosts
from horovod.launcher.options.hosts import (
    Host,
    HostsError,
    assign_ranks,
    is_local,
    packed,
    parse_hostfile,
    parse_hosts,
    ranks_by_host,
    unpacked,
)


@pytest.mark.parametrize("name", ["::1", "2001:db8::7", "fe80::1%eth0", "::ffff:10.0.0.1"])
def test_an_ipv6_address_is_a_host_in_brackets(name: str) -> None:
    assert parse_hosts(f"a:1,[{name}]:2, [{name[:-1]}2]") == [Host("a", 1), Host(name, 2), Host(f"{name[:-1]}2", 1)]
    for text in (f"[{name}] slots=2", f"[{name}]:2", f"{name} slots=2"):
        assert parse_hostfile(f"a\n{text}\n", "nodes") == [Host("a", 1), Host(name, 2)]


@pytest.mark.parametrize("entry", ["::1", "fe80::1:2", "[::1:2", "[1::2::3]:1", "[10.0.0.1]:2", "[::1%]:1"])
def test_where_an_address_ends_is_not_guessed(entry: str) -> None:
    for read in (parse_hosts, lambda text: parse_hostfile(text, "nodes")):
        with pytest.raises(
            HostsError, match=r"is not a host\nhint: write an IPv6 address in brackets: \[2001:db8::1\]:4"
        ):
            read(entry)


def test_addresses_are_quoted_as_they_are_written() -> None:
    with pytest.raises(HostsError, match=r"write it once, with all of its slots: \[::1\]:3"):
        parse_hosts("[::1]:1,[::1]:2")
    with pytest.raises(HostsError, match=r"2 slots \(\[::1\]:2\)"):
        ranks_by_host([Host("::1", 2)], 3)


def test_hosts_are_read_in_order() -> None:
    assert parse_hosts("a:1, b-2.c:16") == [Host("a", 1), Host("b-2.c", 16)]
    assert parse_hosts("a,b:2") == [Host("a", 1), Host("b", 2)]


@pytest.mark.parametrize("text", ["a:", ":2", "a:0", "a:-1", "a:2;b:2", "a b:2", "a:2:3", "@b:2"])
def test_what_is_no_host_is_quoted(text: str) -> None:
    with pytest.raises(HostsError, match="is not a host\nhint: write name:slots"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_list_of_hosts_is_an_error(text: str) -> None:
    with pytest.raises(HostsError, match="-H names no host\nhint: is a variable empty?"):
        parse_hosts(text)


@pytest.mark.parametrize("text", ["a:2,", "a:2,,b:2", ",a:2", ","])
def test_a_comma_without_a_host_is_named(text: str) -> None:
    with pytest.raises(
        HostsError, match=f"-H {text}: an entry is empty\nhint: leave out a comma at an end, or one of two"
    ):
        parse_hosts(text)


def test_a_user_belongs_into_the_configuration_of_ssh() -> None:
    hint = "write b.c:2, and the user into ~/.ssh/config: `Host b.c`, and below it `User me`"
    with pytest.raises(HostsError) as caught:
        parse_hosts("a:2,me@b.c:2")
    assert str(caught.value) == f"'me@b.c:2' is not a host\nhint: {hint}"
    with pytest.raises(HostsError) as caught:
        parse_hostfile("me@b.c slots=2\n", "nodes")
    assert str(caught.value) == f"nodes, line 1: 'me@b.c slots=2' is not a host\nhint: {hint.replace(':2', ' slots=2')}"


def test_a_hostfile_has_a_host_a_line_in_any_usual_form() -> None:
    text = "# cluster\n\nnode1 slots=4  # big\n  node2:2\nnode3\nnode-4.example.org slots = 3\n"
    assert parse_hostfile(text, "hosts") == [
        Host("node1", 4),
        Host("node2", 2),
        Host("node3", 1),
        Host("node-4.example.org", 3),
    ]


def test_open_mpis_limit_of_slots_changes_nothing() -> None:
    assert parse_hostfile("a slots=2 max_slots=4\nb slots=1 max-slots = 1\n", "nodes") == [Host("a", 2), Host("b", 1)]


def test_repeated_names_of_a_hostfile_add_up_as_batch_systems_write_them() -> None:
    assert parse_hostfile("a\nb\na\na slots=2\n", "nodes") == [Host("a", 4), Host("b", 1)]


@pytest.mark.parametrize(
    "line",
    ["a slots=", "a slots=0", "a:0", "a b", "a slots=2 b", "a:2:3", "-oProxyCommand=x", "a max_slots=2"],
)
def test_a_line_that_is_no_host_is_quoted_with_its_number(line: str) -> None:
    with pytest.raises(HostsError, match="nodes, line 2: .* is not a host\nhint: write a line for each host"):
        parse_hostfile(f"a\n{line}\n", "nodes")


def test_a_hostfile_without_hosts_is_an_error() -> None:
    with pytest.raises(HostsError, match="nodes names no host"):
        parse_hostfile("# nobody\n\n", "nodes")


def test_a_name_that_ssh_would_take_for_a_flag_is_no_host() -> None:
    with pytest.raises(HostsError, match="is not a host"):
        parse_hosts("-oProxyCommand=x:2")


def test_a_repeated_host_is_an_error() -> None:
    said = "host a, b is listed more than once\nhint: write it once, with all of its slots: a:3,b:2"
    with pytest.raises(HostsError, match=said):
        parse_hosts("a:1,b:1,a:2,b,c:9")


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
    ranks = assign_ranks([Host("localhost", 10_000)], 10_000)
    message = packed(ranks)
    assert message["own"] == ["HOROVOD_RANK", "HOROVOD_LOCAL_RANK"]
    assert message["ranks"][9_999] == [9_999, "9999", "9999"]
    assert len(line(order="start", ranks=message)) < MAX_LINE_BYTES // 40


def test_this_machine_is_known_by_its_names_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    is_local.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: "node1.example.org")
    # node9 has an address of a network for documentation, which no machine has.
    known = {"node1.internal": "127.0.0.1", "127.0.0.7": "127.0.0.7", "alias": "127.0.1.1", "node9": "203.0.113.9"}

    def look_up(name: str, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (known[name], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    names = ["localhost", "127.0.0.1", "node1.example.org", "node1", "node1.internal", "127.0.0.7", "alias"]
    try:
        assert [name for name in names if not is_local(name)] == []
        assert not is_local("node9") and not is_local("nobody-knows-it")
        is_local.cache_clear()
        monkeypatch.setattr(hosts, "_may_bind_any", lambda: True)  # net.ipv4.ip_nonlocal_bind
        assert [name for name in names if not is_local(name)] == []
        assert not is_local("node9")
    finally:
        is_local.cache_clear()
