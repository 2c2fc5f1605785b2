# SPDX-License-Identifier: Apache-2.0
"""Worlds for the tests of PyTorch, in which Horovod is initialized."""

import importlib.util

import pytest
from support.world import World, WorldPool

if importlib.util.find_spec("torch"):
    import torch._dynamo  # noqa: F401  # or the first test with an optimizer would be charged with it


def started(worlds: WorldPool, size: int) -> World:
    def start() -> None:
        import horovod.core

        horovod.core.init()

    world = worlds(size, {"HOROVOD_TRANSPORT": "shm"})
    world.run(start)
    return world


@pytest.fixture
def two(worlds: WorldPool) -> World:
    return started(worlds, 2)


@pytest.fixture
def three(worlds: WorldPool) -> World:
    return started(worlds, 3)
