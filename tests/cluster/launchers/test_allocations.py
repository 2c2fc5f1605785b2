# SPDX-License-Identifier: Apache-2.0
"""A job whose agents were started by a batch system's own program ends as one over ssh does.

LSF and Kubernetes have no server here: programs stand for theirs (support/schedulers/stand_ins.py). test_guides.py has
the jobs that succeed, test_inside_slurm.py those of Slurm.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.jobs import python, run_job
from support.schedulers.stand_ins import kubernetes, lsf

SCRIPT = """
import horovod.core as hvd
hvd.init()
if rank == 3: os.kill(os.getpid(), 9)
signal.pause()
"""


@pytest.mark.parametrize(("make", "way"), [(lsf, "blaunch"), (kubernetes, "rsh-agent")], ids=["lsf", "kubernetes"])
def test_a_rank_that_dies_there_is_named_and_nothing_stays(
    cluster: MakeCluster, tmp_path: Path, make: Callable[[Path, list[str]], dict[str, str]], way: str
) -> None:
    one, two = cluster(2).hosts
    environment = make(tmp_path, ["host0", "host1", "host0", "host1"])
    environment["PATH"] = f"{tmp_path}:/usr/local/bin:/usr/bin:/bin"
    done = run_job(tmp_path, "--verbose", python(SCRIPT), env=environment, on=one)
    assert done.code == 137, done
    assert f"horovodrun: other hosts are reached by {way}\n" in done.stderr
    assert "horovodrun: rank 3 on host host1 was killed by SIGKILL" in done.stderr
    two.assert_empty()
