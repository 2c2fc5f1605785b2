# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on Ray: workers that are lost, join and fail; and discovery of nodes that come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="not run: ray is not installed")

import ray

import horovod.core as hvd
from horovod.core.objects import broadcast_object
from horovod.elastic.drive.discovery import FixedHosts
from horovod.elastic.state.state import ObjectState
from horovod.elastic.worker.wrapper import run_fn
from horovod.ray import ElasticRayExecutor, RayExecutor, ray_logger
from horovod.ray.elastic import TestDiscovery
from horovod.ray.elastic_run import Plan
from horovod.ray.utils import arranged_devices
from horovod.settings import Settings

SETTINGS = RayExecutor.create_settings(timeout_s=60)


@pytest.fixture
def folder(cluster: str, leaves_nothing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOROVOD_ELASTIC_SETTLE_SECONDS", "0.1")
    monkeypatch.setenv("HOROVOD_ELASTIC_DISCOVERY_SECONDS", "0.1")
    yield tmp_path


def counts(folder: Path, act: str, size: int) -> tuple[int, int, int, float]:
    """Counts until a world of this size has come to step 10. Each step adds its number, whatever the size is.

    act: code, run in each step.
    """
    hvd.init()
    state = ObjectState(broadcast_object, hvd.rank, step=0, total=0.0)

    def train(state: Any) -> None:
        while state.step < 10 or hvd.size() < size:
            exec(
                act,
                {
                    "os": os,
                    "time": time,
                    "log": ray_logger.log,
                    "step": state.step,
                    "rank": hvd.rank(),
                    "folder": folder,
                },
            )
            added = hvd.allreduce(np.full(8, state.step + 1.0), op=hvd.Average, name="gradients")
            state.total += float(added[0])
            state.step += 1
            time.sleep(0.02)
            state.commit()

    run_fn(train, None)(state)
    return hvd.rank(), hvd.size(), state.step, state.total


ONCE = "if step == 5 and rank == 1 and not (folder / 'once').exists(): (folder / 'once').touch(); {}"


def is_right(results: list[tuple[int, int, int, float]], size: int) -> None:
    assert [one[:2] for one in results] == [(rank, size) for rank in range(size)]
    assert all(step >= 10 and total == step * (step + 1) / 2 for _, _, step, total in results)


@pytest.mark.slow("jobs on Ray")
def test_a_worker_that_is_killed_is_replaced(folder: Path) -> None:
    executor = RayExecutor(SETTINGS, min_workers=2, max_workers=2)
    executor.start(extra_env_vars={"OF_A_TEST": "seen"})
    seen: list[Any] = []
    act = ONCE.format("os.kill(os.getpid(), 9)") + "\nif step == 9: log(os.environ['OF_A_TEST'])"
    is_right(executor.run(counts, [folder, act, 2], callbacks=[seen.append]), 2)
    assert seen == ["seen"] * 2 and (folder / "once").exists()
    with pytest.raises(NotImplementedError, match="no run_remote\nhint: use run"):
        executor.run_remote(counts)
    with pytest.raises(NotImplementedError, match="no execute_single\nhint: use execute"):
        executor.execute_single(counts)
    with pytest.raises(TypeError, match=r"RayExecutor.run: args cannot be pickled: cannot pickle .* \(in item 0\)"):
        executor.run(counts, [(folder for _ in range(1))])
    executor.shutdown()


class Keeps:
    def __init__(self, value: int) -> None:
        self.value = value


def test_a_worker_joins_on_a_slot_that_is_new(folder: Path) -> None:
    address = next(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])

    class Growing(FixedHosts):
        def find_available_hosts_and_slots(self) -> dict[str, int]:
            return {address: 2 if (folder / "more").exists() else 1}

    settings = ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=2, discovery=Growing({}), timeout_s=60)
    executor = ElasticRayExecutor(settings, override_discovery=False)
    executor.start()
    is_right(executor.run(lambda: counts(folder, "if step == 3: (folder / 'more').touch()", 2)), 2)


def test_the_error_of_a_script_ends_the_job(folder: Path) -> None:
    executor = RayExecutor(SETTINGS, min_workers=2, max_workers=2)
    executor.start(Keeps, [7])
    with pytest.raises(ZeroDivisionError) as caught:
        executor.execute(lambda keeps: counts(folder, f"if step == {keeps.value}: time.sleep(0.2 * rank); 1 / 0", 2))
    assert "worker 0" in str(caught.value.__cause__) or "worker 1" in str(caught.value.__cause__)
    executor.shutdown()


def test_too_few_slots_end_the_job(folder: Path) -> None:
    executor = RayExecutor(SETTINGS, min_workers=9, elastic_timeout=1)
    executor.start()
    with pytest.raises(RuntimeError, match=r"the elastic job has ended: (?s:.)*--explain elastic-too-few-slots"):
        executor.run(counts, [folder, "", 9])
    executor.shutdown()


@pytest.mark.parametrize(
    ("own", "slot", "count", "expected"),
    [
        (["0"], 0, 2, "0,1"),
        (["0"], 1, 2, "1,0"),
        (["3"], 1, 4, "0,3,2,1"),
        (["GPU-a"], 0, 2, "GPU-a"),  # a name of another kind
        (["1"], 2, 2, "1"),
        ([], 0, 0, ""),
    ],
)
def test_a_worker_finds_its_gpu_at_its_slot(own: list[str], slot: int, count: int, expected: str) -> None:
    assert arranged_devices(own, slot, count) == expected


def test_nodes_of_a_test_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"Alive": name != "d", "NodeManagerAddress": name, "Resources": {"CPU": 5.0, "GPU": 2}} for name in "abcd"]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    discovery = TestDiscovery(1, 3, change_frequency_s=0, cpus_per_slot=2, verbose=False)
    seen = [discovery.find_available_hosts_and_slots() for _ in range(100)]
    assert {len(hosts) for hosts in seen} == {1, 2, 3} and {*seen[0].values()} == {2}
    assert {name for hosts in seen for name in hosts} == {"a", "b", "c"}
    with_gpus = TestDiscovery(3, 3, 60, use_gpu=True, gpus_per_slot=2, verbose=False)
    assert with_gpus.find_available_hosts_and_slots() == {"a": 1, "b": 1, "c": 1}


def test_settings_and_arguments() -> None:
    limits = Plan(SETTINGS, FixedHosts({}), 1, None, 1.0, 0.0, 600.0).limits(Settings())
    assert (limits.start_s, limits.start_name) == (60.0, "timeout_s")
    with pytest.warns(DeprecationWarning, match="min_np is an old name\nhint: use min_num_proc"):
        assert ElasticRayExecutor.create_settings(min_np=3).min_num_proc == 3
    with pytest.raises(ValueError, match="min_workers=3, max_workers=2: expected 1 <= min_workers <= max_workers"):
        ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=3, max_num_proc=2))
    with pytest.raises(ValueError, match="gpus_per_slot=1, use_gpu=False"):
        ElasticRayExecutor(ElasticRayExecutor.create_settings(), gpus_per_slot=1)
