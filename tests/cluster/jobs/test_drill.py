# SPDX-License-Identifier: Apache-2.0
"""`horovodrun --drill` on hosts of a cluster: healthy ones, and ones with bad links between some of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.jobs import run_job

DRILLS = ["links", "clocks", "memory", "GPUs", "kill", "freeze", "late", "elastic"]


def rows(stdout: str) -> dict[str, str]:
    """ok or BAD, by drill."""
    return {found[2]: found[1] for found in re.finditer(r"^(ok |BAD)  (\w+) ", stdout, re.M)}


@pytest.mark.thorough
def test_healthy_hosts_hold_all_that_is_expected(cluster: MakeCluster, tmp_path: Path) -> None:
    one, *_ = cluster(3).hosts
    done = run_job(tmp_path, "--drill", "-np", "4", "-H", "host0:2,host1:1,host2:1", on=one)
    assert (done.code, rows(done.stdout)) == (0, dict.fromkeys(DRILLS, "ok ")), done
    assert "fix:" not in done.stdout and "3 pairs: " in done.stdout
    assert done.seconds < 120


@pytest.mark.thorough
def test_a_slow_pair_and_one_that_loses_packets_are_named_and_no_other(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(4)
    for host in made.hosts:
        host.rate(400)  # so that a busy machine is not what makes a pair slow
    made.spoil(made.hosts[0], made.hosts[1], "limit rate over 5 mbytes/second burst 256 kbytes drop")
    made.spoil(made.hosts[2], made.hosts[3], "numgen random mod 100 < 5 drop")
    done = run_job(tmp_path, "--drill", "-np", "4", "-H", "host0:1,host1:1,host2:1,host3:1", on=made.hosts[2])
    assert done.code == 1 and rows(done.stdout)["links"] == "BAD", done
    fix = [line for line in done.stdout.splitlines() if line.startswith("fix: ") and " - " in line]
    assert any(re.match(r"fix: host0 - host1: slow \(\d.* Mbit/s, others \d.* Mbit/s\)", line) for line in fix), done
    assert any(re.match(r"fix: host2 - host3: packets are lost \(\d+\.\d% resent\)", line) for line in fix), done
    assert all(line.startswith(("fix: host0 - host1", "fix: host2 - host3")) for line in fix), done
    assert {name: how for name, how in rows(done.stdout).items() if name != "links"} == {
        name: "ok " for name in DRILLS if name != "links"
    }, done
