# SPDX-License-Identifier: Apache-2.0
"""Worlds with the stand-in's GPUs, for the contract's tests of any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from contract import test_results as results

from support import frameworks, reference
from support.gpu import standin_library as standin
from support.world import World, WorldPool

__all__ = ["OnGpus", "any_transport", "check_results", "world_of"]

# The variables of worlds with GPUs, from the way that tensors go and other variables.
OnGpus = Callable[..., dict[str, str]]


def world_of(worlds: WorldPool, environment: OnGpus, way: str, size: int) -> World:
    """Over a transport that goes by the size."""
    transport = {3: "tcp", 4: "3+1"}.get(size, "shm")
    more = {"HOROVOD_TRANSPORT": transport, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    return worlds(size, environment(way, **more))


def any_transport(worlds: WorldPool, environment: OnGpus, way: str = "best") -> Callable[..., World]:
    """In place of the pool, for the contract's tests: a world for each size whatever transport they ask for."""

    def world(size: int, env: Mapping[str, str] | None = None) -> World:
        return world_of(worlds, environment, way, size)

    return world


def check_results(world: World, way: str, size: int, framework: str, dtype: str) -> None:
    """Runs the contract's table of results there: no race, and all tensors go by NCCL or through host memory."""

    def run() -> tuple[list[str], str, dict[str, Any]]:
        gpu = frameworks.load(framework)
        same = reference.same_but_for_rounding if way == "best" and size == 3 else reference.same_bits
        wrong, _ = results.wrong_rows_of(gpu, dtype, same)
        return wrong, standin.races(), gpu.hvd.statistics()

    for wrong, races, statistics in world.run(run):
        assert wrong == [] and races == ""
        assert (statistics["batches_by_nccl"] > 0) == (way == "best")
        assert statistics["batches_staged"] > 0 or dtype != "int16"  # NCCL reduces none
