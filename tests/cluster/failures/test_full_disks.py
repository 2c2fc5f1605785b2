# SPDX-License-Identifier: Apache-2.0
"""A disk that is full costs files, never the job: training goes on, and one warning names the path and the cause."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from support.cluster import Host, MakeCluster
from support.jobs import Job, python

HOSTS = ["-np", "2", "-H", "host0:1,host1:1"]
TRAIN = """
import numpy as np
import horovod.core as hvd
hvd.init()
hvd.allreduce(np.ones(4), name="first")
ready()
while hvd.allreduce(np.array([float(os.path.exists("stop"))]), op=hvd.Sum, name="go on")[0] == 0:
    {work}
print("trained", rank)
"""


def small_disk(host: Host, folder: Path, kilobytes: int) -> Path:
    folder.mkdir()
    host.run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder), check=True)
    return folder


def test_a_full_disk_for_the_output_of_all_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    one, _ = cluster(2).hosts
    small_disk(one, tmp_path / "logs", 64)
    script = python(TRAIN.format(work="print('x' * 1000)"))
    with Job(tmp_path, HOSTS, "--output-filename", str(tmp_path / "logs"), script, on=one) as job:
        job.wait_ready(2)
        job.wait_for_line("warning: cannot write to", "stderr")
        (tmp_path / "stop").touch()
        done = job.wait()
    assert done.code == 0, done
    assert {f"[{rank}]<stdout>:trained {rank}" for rank in range(2)} <= set(done.stdout.splitlines())
    warning, hint = done.stderr.splitlines()
    assert warning.startswith(f"horovodrun: warning: cannot write to {tmp_path}/logs/rank."), done.stderr
    assert ": No space left on device; " in warning and hint.startswith("hint: the job goes on"), done.stderr


def test_a_full_disk_for_the_timeline_of_a_rank(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    path = small_disk(two, tmp_path / "timeline", 64) / "timeline.json"
    flags = ["--timeline-filename", str(path)]
    with Job(tmp_path, HOSTS, flags, python(TRAIN.format(work="pass")), on=one) as job:
        job.wait_ready(2)
        job.wait_for_line("can write no more of the timeline", "stderr")
        while os.path.getsize(path) <= 64 * 1024:  # the other host has its own disk
            time.sleep(0.05)
        (tmp_path / "stop").touch()
        done = job.wait()
    assert done.code == 0, done
    (warning,) = done.stderr.splitlines()
    assert f"rank 1 can write no more of the timeline {path}: No space left on device; training goes on" in warning
    kept = two.run("cat", str(path)).stdout
    assert any(event["ph"] == "E" for event in json.loads(kept)), "what was written before is still whole"
    assert json.loads(path.read_text())
