# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.bench strategies` over hosts: what each way sends through the busiest link is what theory says."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest
from support.cluster import MakeCluster
from support.jobs import run_job

BYTES = 8 << 20


def counted(cluster: MakeCluster, folder: Path, hosts: int, ranks: int, **environment: str) -> dict[str, float]:
    """Bytes through the busiest link, in units of the gradients'."""
    first = cluster(hosts).hosts[0]
    names = ",".join(f"host{host}:{ranks}" for host in range(hosts))
    bench = ["-m", "horovod.bench", "strategies", "--bytes", str(BYTES), "--rounds", "2", "--json", "record.json"]
    done = run_job(folder, "-np", str(hosts * ranks), "-H", names, [sys.executable, *bench], on=first, env=environment)
    assert done.code == 0, done
    rows = json.loads((folder / "record.json").read_text())["rows"]
    assert all(min(row["seconds"]) > 0 for row in rows)
    return {row["strategy"]: statistics.median(row["bytes"]) / BYTES for row in rows}


def test_one_rank_on_each_of_four_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    seen = counted(cluster, tmp_path, 4, 1)
    # Headers of packets, and their acknowledgements, are a few hundredths.
    assert seen == {
        "one parameter server": pytest.approx(3, rel=0.1),  # three push to it, then three pull
        "a server on each host": pytest.approx(1.5, rel=0.1),
        "gather and broadcast": pytest.approx(3, rel=0.1),
        "ring": pytest.approx(1.5, rel=0.1),
        "direct exchange": pytest.approx(1.5, rel=0.1),
    }


def test_hierarchical_moves_less_than_ranks_that_know_no_hosts(cluster: MakeCluster, tmp_path: Path) -> None:
    seen = counted(cluster, tmp_path, 2, 2)
    assert seen["hierarchical"] == pytest.approx(1, rel=0.1)
    assert seen["one parameter server"] == pytest.approx(2, rel=0.1)  # two ranks of the other host
    assert seen["ring"] == pytest.approx(1.5, rel=0.1)  # one link of four, with 2 * 3 / 4 of the bytes
