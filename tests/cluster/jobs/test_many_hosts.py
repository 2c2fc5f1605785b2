# SPDX-License-Identifier: Apache-2.0
"""A job over 256 hosts: only ssh is faked. Each of the hosts has processes of its own, all are on one machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.extent import SLACK_S
from support.jobs import run_job

HOSTS = 256
STARTED_S = 30.0
SSH = """#!/bin/bash
printf '%s\\n' "$*" >> "$LOG"
while [[ $1 != -- ]]; do shift; done
exec unshare --pid --fork --kill-child=KILL --mount --mount-proc sh -c "$3"
"""


@pytest.mark.thorough
def test_256_hosts_start_in_time_over_one_connection_each(cluster: MakeCluster, tmp_path: Path) -> None:
    (one,) = cluster(1).hosts
    names = [f"far-{number}" for number in range(HOSTS)]
    known = [f"10.79.0.{number} {name}\n" for number, name in enumerate(names)]
    (tmp_path / "names").write_text("".join(["127.0.0.1 localhost\n", *known]))  # so that no name server is asked
    one.put(tmp_path / "names", Path("/etc/hosts"))
    (tmp_path / "hosts").write_text("".join(f"{name} slots=1\n" for name in names))
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "ssh").write_text(SSH)
    (tmp_path / "programs" / "ssh").chmod(0o755)
    env = {"PATH": f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
    env["HOROVOD_LOST_TIMEOUT_SECONDS"] = "60"  # a few cores do the work of all these hosts
    flags = ["-np", str(HOSTS), "--hostfile", "hosts", "--network-interface", "lo"]
    done = run_job(tmp_path, flags, "sh", "-c", "echo $HOROVOD_HOSTNAME", env=env, on=one)
    assert (done.code, done.said) == (0, ""), done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"[{rank}]<stdout>:{name}" for rank, name in enumerate(names))
    connections = (tmp_path / "log").read_text().splitlines()
    assert len(connections) == len(set(connections)) == HOSTS
    print(f"{HOSTS} hosts took {done.seconds:.1f} s")
    assert done.seconds < STARTED_S + SLACK_S
