# SPDX-License-Identifier: Apache-2.0
"""Worlds for the tests of MXNet, in which Horovod is initialized."""

import pytest
from support.world import World, WorldPool


@pytest.fixture
def two(worlds: WorldPool) -> World:
    def start() -> None:
        import horovod.mxnet

        horovod.mxnet.init()

    world = worlds(2)
    world.run(start)
    return world
