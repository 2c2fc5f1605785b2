# SPDX-License-Identifier: Apache-2.0
"""Worlds for the tests of Keras."""

import pytest
from support.keras_worlds import BACKENDS, started
from support.world import World, WorldPool


@pytest.fixture(scope="module", params=BACKENDS)
def world(worlds: WorldPool, request: pytest.FixtureRequest) -> World:
    return started(worlds, request.param)


@pytest.fixture(scope="module")
def tensorflow(worlds: WorldPool) -> World:
    return started(worlds, "tensorflow")


@pytest.fixture(scope="module")
def legacy(worlds: WorldPool) -> World:
    return started(worlds, "tensorflow", legacy=True)
