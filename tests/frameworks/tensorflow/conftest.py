# SPDX-License-Identifier: Apache-2.0
"""The world of most tests of TensorFlow."""

import pytest
from support.frameworks import tensorflow_world
from support.world import World, WorldPool


@pytest.fixture(scope="module")
def world(worlds: WorldPool) -> World:
    return tensorflow_world(worlds)
