# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of this machine for each test file, with 4 CPUs and 2 GPUs that need not exist."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.extent import SLACK_S
from support.patience import patiently, wait_until

RAY = {
    "RAY_AUTH_MODE": "disabled",  # else a token is written into HOME
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "OMP_NUM_THREADS": "1",
    # Actors load functions of test files by name.
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]),
}


def ray_processes() -> dict[int, str]:
    """The titles of this process' descendants that are actors or run a task of Ray's."""
    parents: dict[int, int] = {}
    titles: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            titles[int(folder.name)] = (folder / "cmdline").read_text().split("\0")[0]
        except OSError:  # it has ended
            continue

    def is_ours(pid: int) -> bool:
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    # Ray's own. Those of Ray Data and Train stay; without a dashboard the cleaner does not learn that a run is over.
    own = "IDLE DashboardAgent RuntimeEnvAgent _StatsActor _AutoscalingCoordinatorActor PlacementGroupCleaner"
    of_ray = tuple(f"ray::{name}" for name in own.split())
    named = {pid: title for pid, title in titles.items() if title.startswith("ray::") and is_ours(pid)}
    return {pid: title for pid, title in named.items() if not title.startswith(of_ray)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Ray's address."""
    ray = pytest.importorskip("ray", reason="not run: ray is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="hvd-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {**RAY, "HOME": folder}.items():
            patch.setenv(name, value)
        # Ray gives its raylet 30 s, which is not a setting.
        get_node = ray._private.services.get_node
        patient = lambda *given: patiently(lambda _: get_node(*given), errors=RuntimeError)  # noqa: E731
        patch.setattr(ray._private.services, "get_node", patient)
        context = ray.init(
            num_cpus=4,
            num_gpus=2,
            include_dashboard=False,
            object_store_memory=100_000_000,
            _temp_dir=folder,  # short: Ray's sockets are in it
            logging_level="warning",
        )
        yield str(context.address_info["address"])
        ray.shutdown()


@pytest.fixture
def leaves_nothing(cluster: str) -> Iterator[None]:
    """No actor that a test has started lives on when it has ended."""
    before = ray_processes()
    yield

    def left() -> dict[int, str]:
        return {pid: title for pid, title in ray_processes().items() if pid not in before}

    wait_until(lambda: not left(), left, SLACK_S)
