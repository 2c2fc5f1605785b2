# SPDX-License-Identifier: Apache-2.0
"""Worlds for the tests of Keras."""

import pytest
from support.extent import later
from support.keras_worlds import BACKENDS, Either, started
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


@pytest.fixture(scope="module", params=[BACKENDS[0], *map(later, BACKENDS[1:]), "tf-keras"])
def either(worlds: WorldPool, request: pytest.FixtureRequest) -> Either:
    """Keras 3 or tf-keras."""
    legacy = request.param == "tf-keras"
    return Either(started(worlds, BACKENDS[0] if legacy else request.param, legacy), legacy)
