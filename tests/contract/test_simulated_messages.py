# SPDX-License-Identifier: Apache-2.0
"""A simulated job sends as many messages as a real one: 4 ranks on 2 hosts, a first step and a steady one."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from support.world import WorldPool

import horovod.core as hvd
from horovod.simulate.__main__ import main

NAMES = 12


def test_a_simulated_job_sends_the_messages_of_a_real_one(
    worlds: WorldPool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    line = ["run", "--hosts", "2", "--ranks", "2", "--names", str(NAMES), "--bytes", "24", "--json", str(path)]
    assert main(line) == 0, capsys.readouterr().err
    first, steady = json.loads(path.read_text())["run"]["steps"]
    simulated = [sum(step["up"].values()) + sum(step["down"].values()) for step in (first, steady)]
    assert simulated == [2 * NAMES, 2]

    def run() -> list[list[int]]:
        hvd.init()

        def step(names: list[str]) -> int:
            """How many messages this host's leader has sent and taken in it."""
            before = hvd.statistics()["control_messages"]
            handles = [hvd.allreduce_async(np.ones(6, np.float32), name=name, op=hvd.Sum) for name in names]
            for handle in handles:
                hvd.synchronize(handle)
            time.sleep(0.02)  # the other host's ranks are not in the next step yet
            return int(hvd.statistics()["control_messages"] - before)

        # On a busy machine a rank is often late, and what would go as one message goes as two.
        counts: list[list[int]] = []
        while len(counts) < 500 and not hvd.broadcast(np.array(simulated in counts), 0, name="was as simulated"):
            names = [f"step {len(counts)}, name {name}" for name in range(NAMES)]
            counts.append([step(names), step(names)])
        return counts

    (counts, *_) = worlds(4, {"HOROVOD_TRANSPORT": "2+2"}).run(run)
    assert simulated in counts, counts
