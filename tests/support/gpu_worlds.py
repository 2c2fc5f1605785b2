# SPDX-License-Identifier: Apache-2.0
"""Worlds with the stand-in's GPUs, for the contract's tests of any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from support.world import World, WorldPool

__all__ = ["OnGpus", "any_transport", "world_of"]

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
