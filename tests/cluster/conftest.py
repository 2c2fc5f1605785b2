# SPDX-License-Identifier: Apache-2.0
"""Clusters for the tests of this folder. What this machine lacks for them is a failure with REQUIRE_CLUSTER=1."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import Cluster, Host, MakeCluster, lacking


@pytest.fixture(scope="session")
def cluster_tools() -> None:
    """Skips the test if there can be no clusters here."""
    reason = lacking()
    if reason is not None:
        (pytest.fail if os.environ.get("REQUIRE_CLUSTER") == "1" else pytest.skip)(f"not run: {reason}")


@pytest.fixture
def cluster(cluster_tools: None, tmp_path: Path) -> Iterator[MakeCluster]:
    """cluster(2): two hosts, until the test ends; `tmp_path` exists on both. Nothing may run there then."""
    made_hosts: list[Host] = []
    with contextlib.ExitStack() as stack:

        def make(count: int) -> Cluster:
            made = Cluster(count, shared=[tmp_path])
            made_hosts.extend(stack.enter_context(made))
            return made

        yield make
        for host in made_hosts:
            host.assert_empty()
