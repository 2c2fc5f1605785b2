# SPDX-License-Identifier: Apache-2.0
"""Worlds for the tests of PyTorch, in which Horovod is initialized."""

import pytest
from support.world import World, WorldPool


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
