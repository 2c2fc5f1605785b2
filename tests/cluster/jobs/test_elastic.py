# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs over ssh hosts: hosts come, go, lose power and freeze, and no step is lost or counted twice."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from support.cluster import Host, MakeCluster
from support.elastic.elastic_jobs import ElasticJob
from support.extent import SLACK_S

SOON = {"HOROVOD_LOST_TIMEOUT_SECONDS": "3"}


def started(tmp_path: Path, on: Host, hosts: str, np: int, least: int = 1) -> ElasticJob:
    return ElasticJob(tmp_path, "-np", str(np), "--min-np", str(least), hosts=hosts, on=on, env=SOON)


def test_a_host_is_removed_and_another_one_comes_before_the_next_world(cluster: MakeCluster, tmp_path: Path) -> None:
    """horovod#3494, over real hosts."""
    one, _, _ = cluster(3).hosts
    with started(tmp_path, one, "host0:1 host1:1", 2) as job:
        job.wait_for_world(2)
        job.set_hosts("host0:1 host2:1")
        begin = time.monotonic()
        assert set(job.wait_for_world(2)) == {0, 2}
        assert time.monotonic() - begin < 10.0 + SLACK_S
        assert "survived" not in job.finish()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_without_power_is_a_loss_of_its_workers(cluster: MakeCluster, tmp_path: Path, lost: int) -> None:
    """Also the one of rank 0, which is not the launcher's."""
    hosts = cluster(3).hosts
    with started(tmp_path, hosts[2], "host0:2 host1:2", 4, least=2) as job:
        job.wait_for_world(4)
        hosts[lost].power_off()
        survivors = job.wait_for_world(2)
        assert set(survivors) == ({2, 3} if lost == 0 else {0, 1})
        assert re.search(rf"host host{lost} was lost: its agent has said nothing for 3 s", job.finish())


def test_hosts_that_cannot_connect_to_each_other_go_on_without_one_of_them(
    cluster: MakeCluster, tmp_path: Path
) -> None:
    made = cluster(3)
    env = {**SOON, "HOROVOD_START_TIMEOUT": "6"}
    flags = ["-np", "3", "--min-np", "1", "-H", "host0:1,host1:1,host2:1"]
    with ElasticJob(tmp_path, *flags, on=made.hosts[0], env=env) as job:
        job.wait_for_world(3)
        made.cut(made.hosts[1], made.hosts[2])
        assert set(job.wait_for_world(2)) == {0, 1}
        said = job.finish()
    assert "worker 2 on host2 was ended: it and worker 1 on host1 cannot connect to each other; look for a" in said
    assert "host host2 is no longer used" in said


def test_a_killed_worker_of_another_host(cluster: MakeCluster, tmp_path: Path) -> None:
    one, _ = cluster(2).hosts
    env = {"HOROVOD_ELASTIC_BLAME": "worker"}
    with ElasticJob(tmp_path, "-np", "4", "--min-np", "1", "-H", "host0:2,host1:2", env=env, on=one) as job:
        job.wait_for_world(4)
        os.kill(job.pid_of(3), signal.SIGKILL)
        assert set(job.wait_for_world(3)) == {0, 1, 2}
        assert set(job.wait_for_world(4)) == {0, 1, 2, 4}
        job.finish()


def test_a_host_that_comes_back_gets_workers_again(cluster: MakeCluster, tmp_path: Path) -> None:
    one, _ = cluster(2).hosts
    with started(tmp_path, one, "host0:1 host1:1", 2) as job:
        job.wait_for_world(2)
        for hosts, size in (("host0:1", 1), ("host0:1 host1:1", 2)) * 2:
            job.set_hosts(hosts)
            job.wait_for_world(size)
        assert "survived" not in job.finish()


def test_the_end_of_the_launcher_ends_all_workers_everywhere(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    with started(tmp_path, one, "host0:2 host1:2", 4) as job:
        job.wait_for_world(4)
        os.kill(job.launcher(), signal.SIGKILL)
        for host in (one, two):
            host.assert_empty()
        job.wait()


@pytest.mark.thorough
def test_a_relay_and_hosts_behind_relays_are_lost(cluster: MakeCluster, tmp_path: Path) -> None:
    """Six hosts: the leaders of hosts 1 and 4 are relays, of hosts 2 and 3, and of host 5."""
    hosts = cluster(6).hosts
    flags = ["-np", "6", "--min-np", "3", "-H", ",".join(f"host{number}:1" for number in range(6))]
    env = {**SOON, "HOROVOD_RELAYS_ABOVE_HOSTS": "2", "HOROVOD_ELASTIC_BLAME": "worker"}
    with ElasticJob(tmp_path, *flags, env=env, on=hosts[0]) as job:
        job.wait_for_world(6)
        hosts[1].power_off()
        assert set(job.wait_for_world(5)) == {0, 2, 3, 4, 5}
        hosts[5].power_off()
        assert set(job.wait_for_world(4)) == {0, 2, 3, 4}
        os.kill(job.pid_of(3), signal.SIGKILL)
        assert len(job.wait_for_world(3)) == 3
        assert len(job.wait_for_world(4)) == 4
        job.finish()
