# SPDX-License-Identifier: Apache-2.0
"""Worlds for the tests of Keras."""

import pytest
from support.extent import later
from support.keras_worlds import BACKENDS, started
from support.world import World, WorldPool


# The other backends train in test_training_equals_one_process_on_the_whole_batch every day.
@pytest.fixture(scope="module", params=[BACKENDS[0], *map(later, BACKENDS[1:])])
def world(worlds: WorldPool, request: pytest.FixtureRequest) -> World:
    return started(worlds, request.param)


@pytest.fixture(scope="module")
def tensorflow(worlds: WorldPool) -> World:
    return started(worlds, "tensorflow")


@pytest.fixture(scope="module")
def legacy(worlds: WorldPool) -> World:
    return started(worlds, "tensorflow", legacy=True)
