# SPDX-License-Identifier: Apache-2.0
"""The world of most tests of JAX."""

import pytest
from support.frameworks import jax_world
from support.world import World, WorldPool


@pytest.fixture(scope="module")
def world(worlds: WorldPool) -> World:
    def start() -> None:
        import horovod.jax as hvd

        hvd.init()

    world = jax_world(worlds)
    world.run(start)
    return world
