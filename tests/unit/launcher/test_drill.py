# SPDX-License-Identifier: Apache-2.0
"""The drills' verdicts on what was measured, and the measurement of a link over loopback."""

from __future__ import annotations

import dataclasses
import itertools
import os
import socket
import threading
from typing import Any

import pytest

from horovod.launcher.drill import run, verdicts
from horovod.launcher.drill.links import Link, answer, measure, rounds
from horovod.launcher.drill.run import Ended
from horovod.settings import Settings

NAMES = ["a", "b", "c", "d"]
GOOD: dict[str, Any] = {"trip_s": 1e-4, "there": 1e9, "back": 1.1e9, "sent": 1000}


def links(hosts: int, **bad: dict[str, Any]) -> list[Link]:
    """All pairs, good but for those named, as a_b={"there": 1e8}."""
    return [
        Link(pair, **{**GOOD, **bad.get(f"{NAMES[pair[0]]}_{NAMES[pair[1]]}", {})})
        for pair in itertools.combinations(range(hosts), 2)
    ]


@pytest.mark.parametrize("hosts", range(1, 10))
def test_each_pair_meets_once_and_a_host_has_one_partner_at_a_time(hosts: int) -> None:
    made = rounds(hosts)
    assert sorted(itertools.chain(*made)) == list(itertools.combinations(range(hosts), 2))
    for pairs in made:
        busy = list(itertools.chain(*pairs))
        assert len(busy) == len(set(busy))


def test_good_links_hold() -> None:
    for hosts in (2, 3, 4):
        row = verdicts.of_links(links(hosts), NAMES)
        assert row.held and "8.0 Gbit/s" in row.actual and "0.10 ms" in row.actual
    # What differs by half is how networks are.
    assert verdicts.of_links(links(4, a_b={"back": 5e8}, c_d={"trip_s": 4e-4, "resent": 15}), NAMES).held


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ({"back": 1e8}, "b - d: slow (800.0 Mbit/s, others 8.0 Gbit/s)."),
        ({"there": 1e8}, "b - d: slow (800.0 Mbit/s, others 8.0 Gbit/s)."),
        ({"resent": 30}, "b - d: packets are lost (3.0% resent)."),
        ({"trip_s": 0.01}, "b - d: far (10.00 ms for a round trip, others 0.10 ms)."),
        ({"error": "10.0.0.1:7: Connection refused"}, "b - d: cannot connect (10.0.0.1:7: Connection refused)."),
    ],
)
def test_a_bad_pair_is_named_alone(bad: dict[str, Any], line: str) -> None:
    (fix,) = verdicts.of_links(links(4, b_d=bad), NAMES).fix
    assert fix.startswith(line)


@pytest.mark.parametrize("hosts", [3, 4])
def test_a_host_whose_every_pair_is_slow_is_named_once(hosts: int) -> None:
    slow = {"there": 1e8}
    (fix,) = verdicts.of_links(links(hosts, a_b=slow, b_c=slow, b_d=slow), NAMES[:hosts]).fix
    assert fix.startswith("b: slow, with every other host (800.0 Mbit/s, others 8.0 Gbit/s).")


def test_two_hosts_have_no_pair_to_compare_with_but_packets_are_lost_all_the_same() -> None:
    assert verdicts.of_links(links(2, a_b={"there": 1e3}), NAMES[:2]).held
    (fix,) = verdicts.of_links(links(2, a_b={"resent": 50}), NAMES[:2]).fix
    assert fix.startswith("a - b: packets are lost")
    assert verdicts.of_links(links(2, a_b={"error": "x"}), NAMES[:2]).actual == "no pair could connect"
    assert verdicts.of_links([], NAMES[:1]).held


def test_a_clock_that_is_off_is_named() -> None:
    row = verdicts.of_clocks(links(3, a_b={"offset_s": -2.0}, a_c={"offset_s": 0.4}), NAMES)
    (fix,) = row.fix
    assert fix.startswith("b: its clock is 2.0 s behind that of a,")


def host(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "ranks": 2, "memory": 8 << 30, "shm": 4 << 30, "gpus": [], **facts}


def test_what_was_not_run_is_not_ok() -> None:
    no_link = verdicts.of_links(links(2, a_b={"error": "x"}), NAMES[:2])
    clocks = verdicts.of_clocks(links(2, a_b={"error": "x"}), NAMES[:2])
    freeze = run._stopped([], 2, dataclasses.replace(Settings(), frozen_timeout_s=0.0))
    alone = verdicts.of_links([], NAMES[:1])
    assert [row.mark for row in (no_link, clocks, freeze, alone)] == ["BAD", "-", "-", "-"]
    assert freeze.actual == "not run: HOROVOD_FROZEN_TIMEOUT_SECONDS is 0"


def test_hosts_without_room_or_gpus_are_named() -> None:
    assert verdicts.of_memory([host("a"), host("b")]).actual == "2048 MiB or more"
    (fix,) = verdicts.of_memory([host("a"), host("b", shm=100 << 20)]).fix
    assert fix.startswith("b: 100 MiB of /dev/shm are free for 2 ranks.")
    assert verdicts.of_gpus([host("a"), host("b")]).held
    assert verdicts.of_gpus([host("a", gpus=["H100"] * 2), host("b", gpus=["H100"] * 3)]).actual == "5 (H100)"
    lacking = verdicts.of_gpus([host("a", gpus=["H100"] * 2), host("b", gpus=["A100"])]).fix
    assert lacking[0].startswith("b: 1 GPU for 2 ranks.") and "different GPUs (A100, H100)" in lacking[1]


def test_the_table_has_how_to_fix_it_below() -> None:
    rows = [
        verdicts.Row("one", "p", "h"),
        verdicts.Row("two", "longer", "h", ("do this",)),
        verdicts.Row("three", "p", "not run", ran=False),
    ]
    assert verdicts.table(rows).splitlines() == [
        "     drill  expected  actual",
        "ok   one    p         h",
        "BAD  two    longer    h",
        "-    three  p         not run",
        "",
        "fix: do this",
    ]


@pytest.mark.parametrize(
    ("ended", "fix"),
    [
        (Ended([{"fault": 5}], "rank 1 was killed", 1, 10.0, 10.4), ""),
        (Ended([{"fault": 5}], "rank 1 was killed", 1, 10.0, 15.0), "the job took 5 s to end"),
        (Ended([{"fault": 5}], "rank 11 was killed", 1, 10.0, 10.4), "does not name rank 1"),
        (Ended([{"fault": 5}], "rank 1 was killed", 0, 10.0, 10.4), "exit code 0"),
        (Ended([{"fault": 5}], "", None, 10.0, 99.0), "processes may be left"),
        (Ended([], "horovodrun: no room\n", 1), "the job failed before the rank was killed"),
    ],
)
def test_an_end_is_as_expected_or_the_row_says_what_was_not(
    ended: Ended, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_job", lambda name, flags: ended)
    row = run._killed([], 2, Settings())
    assert row.held == (fix == "") and fix in " ".join(row.fix)
    assert row.expected == "a rank is killed: the job ends within 3.5 s, and names it"


@pytest.mark.parametrize(
    ("hosts", "least"), [(["a", "a"], "1"), (["a", "b"], "1"), (["a", "a", "b", "b"], "2"), (["a", "b", "b"], "1")]
)
def test_an_elastic_job_may_go_on_without_the_host_that_loses_a_worker(
    hosts: list[str], least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []

    def job(name: str, flags: list[str]) -> Ended:
        given.append(flags)
        return Ended([{"fault": 5}, {"steps": 40, "right": True, "size": 1}], "", 0)

    monkeypatch.setattr(run, "_job", job)
    row = run._elastic(["--verbose"], hosts)
    assert row.held and row.actual == "40 steps, the last with 1 worker"
    assert given == [["--verbose", "-np", str(len(hosts)), "--min-np", least]]


def test_a_link_is_measured_and_a_stranger_turned_away() -> None:
    secret = os.urandom(32)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        at = listening.getsockname()
        server = threading.Thread(target=answer, args=(listening, secret))
        server.start()
        refused = measure((0, 1), at, os.urandom(32))
        link = measure((0, 1), at, secret)
        server.join()
    assert refused.error and refused.rate == 0
    assert link.error == "" and link.hosts == (0, 1)
    assert min(link.there, link.back) > 1e6 and 0 < link.trip_s < 1 and abs(link.offset_s) < 0.5
    assert link.sent > 10
    assert "refused" in measure((0, 1), at, secret).error
