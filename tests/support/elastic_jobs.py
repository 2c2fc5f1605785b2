# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of small scripts, whose workers say what they do and which hosts there are when the test says so."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.jobs import Job

# Counts: after n steps every weight is n (n + 1) / 2, however many workers there are, if no step is lost or done twice.
# It goes on until there is a file `end`. `ACT` is code for a step, with the names of this script.
SCRIPT = """
import os, signal, sys, time
import numpy as np
import horovod.core as hvd
from horovod.core.objects import broadcast_object
from horovod.elastic.state import ObjectState
from horovod.elastic.worker import run_fn

worker = int(os.environ["HOROVOD_ELASTIC_WORKER"])
act = compile(os.environ.get("ACT", ""), "act", "exec")
hvd.init()
state = ObjectState(broadcast_object, hvd.rank, step=0, weights=np.zeros(1000))
done = 0

def train(state):
    global done
    print("enter", worker, hvd.rank(), hvd.size(), state.step, os.getpid(), flush=True)
    over = False
    while not over:
        exec(act, globals())
        total = hvd.allreduce(np.full(1000, state.step + 1.0), op=hvd.Sum, name="gradients")
        over = bool(hvd.allreduce(np.array([os.path.exists("end")], np.int32), op=hvd.Max, name="over")[0])
        state.weights = state.weights + total / hvd.size()
        state.step += 1
        done += 1
        time.sleep(0.01)
        state.commit()

run_fn(train, None)(state)
right = bool((state.weights == state.step * (state.step + 1) / 2).all())
print("finished", worker, hvd.rank(), hvd.size(), state.step, done, right, flush=True)
"""


class ElasticJob(Job):
    """A Job of SCRIPT. `hosts`: what the discovery script prints; None: there is no such script."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        act: str = "",
        hosts: str | None = None,
        env: Mapping[str, str] | None = None,
        script: str = SCRIPT,
        **others: Any,
    ) -> None:
        self.directory = directory
        (directory / "train.py").write_text(script)
        flags: list[str] = [*arguments]
        if hosts is not None:
            self.set_hosts(hosts)
            discovery = directory / "hosts.sh"
            discovery.write_text("#!/bin/sh\ncat hosts\n")
            discovery.chmod(0o755)
            flags += ["--host-discovery-script", str(discovery)]
        environment = {"OMP_NUM_THREADS": "1", "ACT": act, "HOROVOD_ELASTIC_SETTLE_SECONDS": "0.3", **(env or {})}
        super().__init__(directory, *flags, [sys.executable, "train.py"], env=environment, **others)

    def set_hosts(self, hosts: str) -> None:
        """What discovery finds from now on, `name:slots` with blanks between."""
        new = self.directory / "hosts.new"
        new.write_text("\n".join(hosts.split()) + "\n")
        new.rename(self.directory / "hosts")

    def wait_for_world(self, size: int) -> dict[int, int]:
        """Blocks until workers have entered a world of that size; their pids by worker."""
        pattern = rf"enter (\d+) \d+ {size} \d+ (\d+)"
        return {int(found[1]): int(found[2]) for found in self.wait_for_line(pattern, count=size)}

    def pid_of(self, worker: int) -> int:
        """A worker's pid on this machine, also if a cluster's host calls it another."""
        mine = f"HOROVOD_ELASTIC_WORKER={worker}".encode()
        for pid in self.pids():
            if mine in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
        raise AssertionError(f"worker {worker} does not run")

    def finish(self) -> str:
        """Lets the workers come to their end; what was printed. The job must succeed."""
        (self.directory / "end").touch()
        done = self.wait()
        assert done.code == 0, self.shown()
        finished = re.findall(r"finished \d+ \d+ (\d+) (\d+) \d+ (\w+)", done.stdout)
        assert finished and {right for _, _, right in finished} == {"True"}, self.shown()
        assert len(finished) == int(finished[0][0]) and len({step for _, step, _ in finished}) == 1, self.shown()
        return done.stdout + done.stderr
