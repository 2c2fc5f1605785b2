# SPDX-License-Identifier: Apache-2.0
"""The world of most tests of JAX."""

import pytest
from support.frameworks import jax_world
from support.world import World, WorldPool


@pytest.fixture(scope="module")
def world(worlds: WorldPool) -> World:
    return jax_world(worlds)
