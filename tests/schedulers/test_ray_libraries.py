# SPDX-License-Identifier: Apache-2.0
"""Ray's own libraries on Horovod: ray.util.collective, Ray Train, and the scripts of docs/ray.md."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.extent import later
from support.pages import ROOT, scripts_of

pytest.importorskip("ray", reason="not run: ray is not installed")

import ray
import ray.data
import ray.train
from ray.util import collective
from ray.util.collective.types import ReduceOp

import horovod.core as hvd
from horovod.core.exceptions import StartError
from horovod.ray import HorovodConfig, HorovodTrainer, register_collective_backend

PAGE = ROOT / "docs/ray.md"
SCRIPTS = ("torch_ray.py", "keras_ray.py", "jax_ray.py", "arrays_ray.py")


@ray.remote(num_cpus=0.5)
class Actor:
    def __init__(self) -> None:
        register_collective_backend()
        register_collective_backend()

    def join(self, size: int, rank: int, group: str) -> None:
        collective.init_collective_group(size, rank, backend="hvd", group_name=group)

    def leave(self, group: str) -> bool:
        collective.destroy_collective_group(group)
        return bool(hvd.is_initialized())

    def every_operation(self, group: str, kind: str) -> dict[str, Any]:
        """What each operation gives to this rank; the value of rank r is r + 1."""
        collective.barrier(group)
        rank, size = collective.get_rank(group), collective.get_collective_group_size(group)

        def made(*values: float) -> Any:
            array = np.array(values)
            return array if kind == "numpy" else importlib.import_module("torch").from_numpy(array)

        seen: dict[str, Any] = {}
        for operation in ReduceOp:
            value = made(rank + 1, 2)
            collective.allreduce(value, group, operation)
            seen[operation.name] = value.tolist()
        value = made(rank + 1)
        collective.reduce(value, 1, group)
        seen["reduce"] = value.tolist()
        value = made(rank + 1)
        collective.broadcast(value, 1, group)
        seen["broadcast"] = value.tolist()
        values = [made(0) for _ in range(size)]
        collective.allgather(values, made(rank + 1), group)
        seen["allgather"] = [one.item() for one in values]
        value = made(0)
        collective.reducescatter(value, [made(10 * index + rank) for index in range(size)], group)
        seen["reducescatter"] = value.tolist()
        value = made(rank + 1)
        if rank == 0:
            collective.send(value, 1, group)
        elif rank == 1:
            collective.recv(value, 0, group)
        seen["message"] = value.tolist()
        collective.barrier(group)
        return seen


def expected(rank: int, size: int) -> dict[str, Any]:
    values = np.arange(1, size + 1, dtype=float)
    return {
        "SUM": [values.sum(), 2.0 * size],
        "PRODUCT": [values.prod(), 2.0**size],
        "MIN": [1, 2],
        "MAX": [size, 2],
        "reduce": [values.sum() if rank == 1 else rank + 1],
        "broadcast": [2],
        "allgather": values.tolist(),
        "reducescatter": [10.0 * rank * size + sum(range(size))],
        "message": [1 if rank == 1 else rank + 1],
    }


@pytest.fixture(params=[later(2), later(3)])
def actors(cluster: str, leaves_nothing: None, request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    actors = [Actor.remote() for _ in range(request.param)]
    yield actors
    for actor in actors:
        ray.kill(actor)


def test_every_operation_in_a_group_and_in_a_part_of_it(actors: list[Any]) -> None:
    size = len(actors)
    ray.get([actor.join.remote(size, rank, "all") for rank, actor in enumerate(actors)])
    seen = ray.get([actor.every_operation.remote("all", "numpy") for actor in actors])
    assert seen == [expected(rank, size) for rank in range(size)]
    some = [actors[-1], actors[0]]  # not in the order of the world
    ray.get([actor.join.remote(2, rank, "some") for rank, actor in enumerate(some)])
    seen = ray.get([actor.every_operation.remote("some", "numpy") for actor in some])
    assert seen == [expected(rank, 2) for rank in range(2)]
    # The world ends with the last group, and can be made anew under the same name.
    assert ray.get([actor.leave.remote("some") for actor in some]) == [True, True]
    assert ray.get([actor.leave.remote("all") for actor in actors]) == [False] * size
    ray.get([actor.join.remote(2, rank, "all") for rank, actor in enumerate(actors[:2])])
    assert ray.get([actor.leave.remote("all") for actor in actors[:2]]) == [False] * 2
    # As the driver declares it.
    register_collective_backend()
    collective.create_collective_group(actors[:2], 2, [0, 1], backend="hvd", group_name="declared")
    seen = ray.get([actor.every_operation.remote("declared", "numpy") for actor in actors[:2]])
    assert seen == [expected(rank, 2) for rank in range(2)]
    ray.kill(ray.get_actor("info_declared"))  # Ray leaves it


@pytest.mark.thorough
@pytest.mark.parametrize("actors", [3], indirect=True)
def test_every_operation_on_tensors_of_torch(actors: list[Any]) -> None:
    ray.get([actor.join.remote(3, rank, "torch") for rank, actor in enumerate(actors)])
    seen = ray.get([actor.every_operation.remote("torch", "torch") for actor in actors])
    assert seen == [expected(rank, 3) for rank in range(3)]
    other = Actor.remote()
    with pytest.raises(StartError, match="the actors of this group are in different worlds"):
        ray.get([other.join.remote(2, 1, "mixed"), actors[0].join.remote(2, 0, "mixed")])
    ray.kill(other)


def train(config: dict[str, Any]) -> None:
    """Counts up to 4 from the checkpoint, if there is one. Rank 1 fails once while rank 0 waits for it."""
    hvd.init()
    context = ray.train.get_context()
    assert (hvd.rank(), hvd.size()) == (context.get_world_rank(), context.get_world_size())
    assert (hvd.local_rank(), hvd.local_size()) == (context.get_local_rank(), context.get_local_world_size())
    begin, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            begin = int(Path(folder, "step").read_text())
    for step in range(begin, 4):
        if step == config["fails_at"] and checkpoint is None and hvd.rank() == 1:
            raise ValueError("once")
        shard = ray.train.get_dataset_shard("train") if config["fails_at"] else None
        rows = sum(row["id"] for row in shard.iter_rows()) if shard else hvd.rank()
        total = float(hvd.allreduce(np.array([float(rows)]), op=hvd.Sum, name="total")[0])
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step + 1))
            kept = ray.train.Checkpoint.from_directory(folder) if hvd.rank() == 0 else None
            ray.train.report({"step": step, "begin": begin, "total": total, "size": hvd.size()}, checkpoint=kept)


@pytest.mark.thorough
@pytest.mark.parametrize("fails_at", [None, 2])
def test_ray_train_with_a_checkpoint_and_a_retry(
    cluster: str, leaves_nothing: None, tmp_path: Path, fails_at: int | None
) -> None:
    trainer = HorovodTrainer(
        train,
        train_loop_config={"fails_at": fails_at},
        horovod_config=HorovodConfig(timeout_s=60),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(tmp_path), failure_config=ray.train.FailureConfig(max_failures=1)
        ),
        datasets={"train": ray.data.range(10)} if fails_at else None,
    )
    handler = signal.getsignal(signal.SIGINT)
    try:
        result = trainer.fit()
    finally:
        signal.signal(signal.SIGINT, handler)  # Ray Train's own one keeps the controller alive
    assert result.metrics == {"step": 3, "begin": fails_at or 0, "total": 45.0 if fails_at else 1.0, "size": 2}
    assert Path(result.checkpoint.path, "step").read_text() == "4"


def test_the_scripts_of_the_page_are_those_that_run_here() -> None:
    assert [script.file for script in scripts_of(PAGE)] == [*SCRIPTS]


@pytest.mark.parametrize("file", [later(file) for file in SCRIPTS])
def test_a_script_of_the_page_prints_what_it_shows(
    cluster: str, leaves_nothing: None, tmp_path: Path, file: str
) -> None:
    script = next(script for script in scripts_of(PAGE) if script.file == file)
    (tmp_path / file).write_text(script.code)
    environment = {**os.environ, "RAY_ADDRESS": cluster, "KERAS_BACKEND": "torch"}
    command = [sys.executable, file]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = [re.sub(r"\d+\.\d+", "0.0", line) for line in done.stdout.splitlines()]
    assert shown[-len(script.printed) :] == [re.sub(r"\d+\.\d+", "0.0", line) for line in script.printed]
