# SPDX-License-Identifier: Apache-2.0
"""A rank of another host than rank 0's is killed or stopped at every named moment of a job.

By default a few cases run, chosen by the seed HVD_FAULT_SEED, which is printed; THOROUGH=1 runs all.
tests/processes/failures/test_fault_points.py does the same, and more, on one host.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import sys
import time
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.extent import SLACK_S, THOROUGH
from support.jobs import Job, stderr_of

SEED = int(os.environ.get("HVD_FAULT_SEED", "1"))
ENDED_S = 3.0
# Noticed after. A stopped leader's host is watched from another host, too.
NOTICED_S = {"kill": 0.5, "stop": 6.0}
# Starting measures the machine with collectives of its own: later passes are inside of the script's.
NTH = {"shm": 240, "tcp": 40, "count": 3}
# Not "append", which only a job of one host passes.
POINTS = ("rendezvous", "attach", "count", "shm", "tcp", "shutdown")
LEADER, FOLLOWER = 2, 3  # of host1
# Data between hosts moves on the leader, as long as one carries all of it.
CASES = [
    case for case in itertools.product(POINTS, NOTICED_S, (LEADER, FOLLOWER)) if (case[0], case[2]) != ("tcp", FOLLOWER)
]

SCRIPT = """
import os, time
rank, victim, spec = int(os.environ["HOROVOD_RANK"]), int(os.environ["VICTIM"]), os.environ["SPEC"]
if rank == victim:
    os.environ["HOROVOD_FAULT_POINT"] = spec
import numpy as np
import horovod.core as hvd
hvd.init()
small, large = np.ones(3, np.float32), np.ones(300_003, np.float32)
for step in range(20 if spec.startswith("shutdown") else 10**9):
    if rank == victim:
        time.sleep(0.001)  # the last to arrive
    for handle in [hvd.allreduce_async(tensor, name=str(tensor.size)) for tensor in (small, large)]:
        hvd.synchronize(handle)
if rank != victim:
    hvd.allreduce(small, name="the victim is shutting down")
"""


@pytest.mark.slow("a job on two hosts for each moment")
@pytest.mark.parametrize(
    ("point", "action", "victim"), CASES if THOROUGH else random.Random(SEED).sample(CASES, 3), ids=str
)
def test_a_fault_on_another_host_ends_all(
    cluster: MakeCluster, tmp_path: Path, point: str, action: str, victim: int
) -> None:
    print(f"HVD_FAULT_SEED={SEED}")
    one, two = cluster(2).hosts
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {"VICTIM": str(victim), "SPEC": f"{point}@{NTH.get(point, 1)}:{action}", "OMP_NUM_THREADS": "1"}
    with Job(tmp_path, "-np", "4", "-H", "host0:2,host1:2", [sys.executable, "train.py"], env=env, on=one) as job:
        reached = job.wait_for_line(r"horovod: fault point \S+: \w+ of process \d+ at ([0-9.]+)", "stderr")
        reached_s = float(reached[0][1])
        done = job.wait()
        for host in (one, two):
            host.assert_empty()
    assert time.monotonic() - reached_s < NOTICED_S[action] + ENDED_S + SLACK_S, done
    for rank in set(range(4)) - {victim}:
        said = stderr_of(rank, done.stderr)
        assert re.search(rf"Error: .*rank {victim} ", said), f"rank {rank} does not name the cause: {done.stderr}"
    words = done.stderr[done.stderr.rindex("\nhorovodrun: ") + 1 :]
    how = {"kill": "was killed by SIGKILL", "stop": "was stopped by SIGSTOP and not continued"}[action]
    assert words.startswith(f"horovodrun: rank {victim} on host host1 {how}"), done.stderr
    assert not re.search(r"^\[\d+\]<", words, re.MULTILINE), f"the cause is not the last word: {done.stderr}"
