# SPDX-License-Identifier: Apache-2.0
"""tools/gpu/check, which is for machines with GPUs: its own logic, on the stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.gpu import standin

ROOT = Path(__file__).resolve().parents[4]


def check(folder: Path, part: str, *options: str, **env: str) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Its exit code, the outcomes and the results of its steps by name."""
    command = [sys.executable, str(ROOT / "tools" / "gpu" / "check"), part, str(folder), *options]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    steps = json.loads((folder / "record.json").read_text())["steps"]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [step["name"] for step in steps], done
    return done.returncode, {s["name"]: s["outcome"] for s in steps}, {s["name"]: s["result"] for s in steps}


def on_stand_in(folder: Path, part: str, *steps: str, options: tuple[str, ...] = ()) -> Any:
    file = standin.environment()["HOROVOD_CUDA_LIBRARY"]
    return check(folder, part, "--stand-in", file, *[word for step in steps for word in ("--step", step)], *options)


def test_without_a_gpu_nothing_is_run_and_nothing_has_failed(tmp_path: Path) -> None:
    code, outcomes, _ = check(tmp_path / "new", "first", HOROVOD_CUDA_LIBRARY="/no/libcuda.so")
    assert code == 0 and len(outcomes) == 21
    assert set(outcomes.values()) == {"not run: this machine has no GPU that the driver tells of"}


def test_the_driver_s_steps(tmp_path: Path) -> None:
    code, outcomes, results = on_stand_in(tmp_path, "first", "versions", "kernels", "nccl")
    assert code == 0 and set(outcomes.values()) == {"passed"}, (tmp_path / "log").read_text()
    assert results["versions"]["nccl"] == 23203 and "stand-in" in results["versions"]["device"]
    assert all(results["kernels"][f"hvd_scale_{kind}"]["wrong"] == 0 for kind in ("f16", "bf16", "f32", "f64"))
    assert results["kernels"]["copies"]["wrong"] == 0
    # The stand-in takes what the library gives and nothing else.
    assert results["nccl"]["config of 40 bytes"] == "taken" and "invalid" in results["nccl"]["config of 24 bytes"]


def test_a_step_that_takes_too_long_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    code, outcomes, _ = on_stand_in(tmp_path, "first", "kernels", "versions", options=("--limit", "0.01"))
    assert code == 1 and list(outcomes) == ["versions", "kernels"]
    assert set(outcomes.values()) == {"failed: ended after its limit of 0.01 s"}


@pytest.mark.thorough
def test_the_steps_of_ranks(tmp_path: Path) -> None:
    code, outcomes, results = on_stand_in(tmp_path, "first", "operations-nccl", "killed-nccl", "failed-nccl")
    assert code == 0 and set(outcomes.values()) == {"passed"}, (tmp_path / "log").read_text()
    assert results["operations-nccl"]["wrong"] == [[], []] and results["operations-nccl"]["batches_by_nccl"] > 50
    assert all("rank 1" in results[name]["told"] for name in ("killed-nccl", "failed-nccl"))


@pytest.mark.thorough
def test_the_steps_of_other_frameworks(tmp_path: Path) -> None:
    """Their own logic, on the CPU."""
    pytest.importorskip("jax", reason="not run: jax is not installed")
    pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
    code, outcomes, results = on_stand_in(tmp_path, "first", "jax", "tensorflow")
    assert code == 0 and set(outcomes.values()) == {"passed"}, (tmp_path / "log").read_text()
    assert all(result["ranks"] == 2 and result["wrong"] == [[], []] for result in results.values())


@pytest.mark.thorough
def test_what_only_a_gpu_can_tell_is_not_run(tmp_path: Path) -> None:
    code, outcomes, results = on_stand_in(tmp_path / "second", "second")
    assert code == 0 and outcomes["speed"] == "not run: torch.distributed cannot use the stand-in"
    assert outcomes["cost"] == "passed" and results["cost"]["submitted_us"] > 0
    code, outcomes, _ = on_stand_in(tmp_path / "third", "third")
    assert code == 0 and outcomes["training"].startswith("not run: ") and outcomes["sanitizer"].startswith("not run: ")
