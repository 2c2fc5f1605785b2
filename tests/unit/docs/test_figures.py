# SPDX-License-Identifier: Apache-2.0
"""README's figures and its chart are those of the records."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.pages import ROOT

RECORDS = ROOT / "benchmarks" / "records"
README = " ".join((ROOT / "README.md").read_text().split())


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RECORDS / f"{name}.json").read_text())["rows"]
    return found


def times_as_long(cases: Sequence[str]) -> list[float]:
    """Of steps on Gloo, beside those on Horovod: the median of the pairs, for each case and number of ranks."""
    seconds = [
        row["seconds"] for ranks in (2, 4) for row in rows(f"torch-distributed-np{ranks}") if row["case"] in cases
    ]
    return [statistics.median(gloo / hvd for gloo, hvd in zip(one["gloo"], one["hvd"], strict=True)) for one in seconds]


def test_the_chart_is_drawn_from_the_records(tmp_path: Path) -> None:
    drawn = tmp_path / "allreduce.svg"
    subprocess.run([sys.executable, ROOT / "benchmarks" / "chart.py", drawn], check=True)
    assert (ROOT / "docs" / "images" / "allreduce.svg").read_text() == drawn.read_text(), "run benchmarks/chart.py"


def test_the_gradients_of_resnet_take_as_long_as_readme_says() -> None:
    found = re.search(r"gradients of ResNet-50 in (\d+) ms. Gloo, .*?, takes \[(\d+) times as long\]", README)
    assert found
    seconds = {side: statistics.median(times) for side, times in rows("gradients-np2-shm")[0]["seconds"].items()}
    assert round(seconds["hvd"] * 1000) == int(found[1])
    assert round(min(seconds["gloo_each"], seconds["gloo_buckets"]) / seconds["hvd"]) == int(found[2])


def test_steps_with_tools_of_pytorch_take_as_long_as_readme_says() -> None:
    found = re.search(
        r"a step of FSDP2 takes ([\d.]+) to ([\d.]+) times as long as on Horovod, and a step of "
        r"DistributedDataParallel ([\d.]+) to ([\d.]+) times",
        README,
    )
    assert found
    sharded, parallel = times_as_long(("fsdp", "fsdp-mlp")), times_as_long(("cnn", "mlp", "transformer"))
    ratios = [min(sharded), max(sharded), min(parallel), max(parallel)]
    assert [f"{ratio:.1f}" for ratio in ratios] == list(found.groups())
