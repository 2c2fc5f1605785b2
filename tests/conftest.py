# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests, and the stacks of every rank when a test runs into its time limit."""

import sys
import threading
from collections.abc import Iterator

import pytest
from support.world import WorldPool, living

STACKS_BEFORE_LIMIT_S = 5.0


@pytest.fixture(scope="session")
def worlds() -> Iterator[WorldPool]:
    """Worlds that many tests share: worlds(2, {"HOROVOD_TRANSPORT": "tcp"}).run(function)."""
    pool = WorldPool()
    yield pool
    pool.close()


def _show_stacks(name: str, stream: int) -> None:
    for world in list(living):
        with open(stream, "w", closefd=False) as file:
            file.write(f"\n=== {name} is about to run into its time limit\n{world.stacks()}\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    # pytest-timeout ends the test and shows this process' stacks; the ranks' must be taken while they still run.
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker and marker.args else item.config.getini("timeout") or 0)
    if limit_s <= STACKS_BEFORE_LIMIT_S:
        yield
        return
    timer = threading.Timer(limit_s - STACKS_BEFORE_LIMIT_S, _show_stacks, (item.nodeid, sys.__stderr__.fileno()))
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
