# SPDX-License-Identifier: Apache-2.0
"""A forecast from two hosts beside what four hosts do, over links of 1 Gbit/s. Compute is emulated by sleep."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cluster import MakeCluster
from support.jobs import run_job

from horovod.simulate.forecast import Job, forecast
from horovod.simulate.links import PRESETS
from horovod.simulate.step import Workload, of_model

EMULATED = Path(__file__).with_name("emulated.py")
MODELS = {
    "cnn": of_model("resnet50", 1.2),
    "mlp": Workload("mlp", np.linspace(0.2, 0.5, 12), np.full(12, 2.0 * (1 << 20)), 0.5),
    "transformer": of_model("bert-base", 4.0),
}
MEGABITS = 1000


def measured(cluster: MakeCluster, folder: Path, work: Workload, hosts: int) -> float:
    """The efficiency of the job on so many hosts, 0 to 1."""
    made = cluster(hosts).hosts
    for host in made:
        host.rate(MEGABITS)
    sizes = [4 * round(size / 4) for size in work.sizes]
    step = {"ready_s": work.ready_s.tolist(), "bytes": sizes, "compute_s": work.compute_s}
    (folder / "step.json").write_text(json.dumps(step))
    names = ",".join(f"host{host}" for host in range(hosts))
    done = run_job(folder, "-np", str(hosts), "-H", names, [sys.executable, str(EMULATED), "step.json"], on=made[0])
    assert done.code == 0, done
    found = re.search(r"median ([\d.]+)", done.stdout)
    assert found is not None
    return work.step_s / float(found[1])


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_four_hosts_are_forecast_from_two_within_5_points(cluster: MakeCluster, tmp_path: Path, name: str) -> None:
    work = MODELS[name]
    errors = []
    for _ in range(3):  # in a busy moment, a link is slower than it claims
        known = measured(cluster, tmp_path, work, 2)
        job = Job(work, PRESETS["1gbit-tcp"], (4,), 1, "memory", "direct", known=((2, known),))
        error = forecast(job).rows[0].band.middle - 100 * measured(cluster, tmp_path, work, 4)
        errors.append(round(error, 1))
        if abs(error) <= 5:
            break
    print(f"{name}: errors of {errors} points")
    assert abs(errors[-1]) <= 5, errors
