# SPDX-License-Identifier: Apache-2.0
"""horovodrun jobs, top and stacks on a job of three hosts, from another host than horovodrun's."""

from __future__ import annotations

from pathlib import Path

from support.cluster import MakeCluster
from support.jobs import Job
from support.watch import id_of, look, script, shown_until


def test_a_job_is_seen_from_each_of_its_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two, three = cluster(3).hosts
    command, enough = script(tmp_path, "hosts")
    with Job(tmp_path, "-np", "6", "-H", "host0:2,host1:2,host2:2", "--summary", command, on=one) as job:
        job.wait_ready(6)
        names = {id_of(command[1], on=host) for host in (one, two, three)}
        (name,) = names
        text = shown_until(r"rank 1 \(host host0\) has been .* it is in prepare", "top", "--once", on=three)
        assert f"job {name}: 6 ranks on 3 hosts" in text
        assert "has not answered" not in shown_until(" in prepare", "stacks", name, on=two)
        enough.touch()
        done = job.wait()
    assert done.code == 0 and "the others waited longest for rank 1 (host host0)" in done.stderr
    assert "no job of this user runs on this host" in look("top", on=two)
