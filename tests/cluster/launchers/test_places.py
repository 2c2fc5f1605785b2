# SPDX-License-Identifier: Apache-2.0
"""Ranks that no launcher has placed find out which of them are on one machine, and by which network they meet."""

from __future__ import annotations

from pathlib import Path

from support.cluster import MakeCluster
from support.started import Folder, assert_world, end_of, srun


def test_hosts_of_one_name_are_two_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    for host in (one, two):
        host.run("hostname", "node", check=True)
    folder = Folder(tmp_path)
    place = "hvd.local_rank(), hvd.cross_rank(), hvd.statistics()['transport']"
    code = f"import horovod.core as hvd; hvd.init(); print({place})"
    ends = end_of(srun(folder, ["-c", code], on=[one, two, one, two]))
    assert ends == [(0, f"{local} {cross} hierarchical\n") for local, cross in ((0, 0), (0, 1), (1, 0), (1, 1))]
    folder.assert_nothing_is_left()


def test_the_ranks_meet_on_the_network_that_all_of_them_reach(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(2)
    one, two = made.hosts
    made.second_network()
    one.run("ip", "link", "set", "eth1", "up", check=True)
    two.wall_off(one.address)  # on the first one, which rank 0 offers first
    one.wall_off(two.address)
    folder = Folder(tmp_path)
    results = folder.new()
    ends = end_of(srun(folder, [str(folder.started), str(results)], on=[one, one, two, two]))
    assert [code for code, _ in ends] == [0] * 4, ends
    assert_world(results, {"host0": [0, 1], "host1": [2, 3]})
    folder.assert_nothing_is_left()


def test_no_network_that_all_reach_is_an_error_for_all(cluster: MakeCluster, tmp_path: Path) -> None:
    made = cluster(2)
    one, two = made.hosts
    two.wall_off(one.address)
    folder = Folder(tmp_path)
    code = "import horovod.core as hvd; hvd.init()"
    ends = end_of(srun(folder, ["-c", code], on=[one, one, two, two], env={"HOROVOD_START_TIMEOUT": "3"}))
    for rank in (0, 1):
        assert "in init for ranks 2, 3 of 4, which have not called init" in ends[rank][1], ends
    for rank in (2, 3):
        assert f"it names {one.address}:" in ends[rank][1] and "(Connection refused)" in ends[rank][1], ends
    folder.assert_nothing_is_left()
