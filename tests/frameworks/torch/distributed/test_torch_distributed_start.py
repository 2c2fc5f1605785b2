# SPDX-License-Identifier: Apache-2.0
"""init_process_group("hvd") in jobs of any launcher: PyTorch finds the backend by itself, and nothing is to be set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.examples import EXAMPLES, mnist_folder
from support.jobs import run_job
from support.started import mpi
from support.world import World

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import torch.distributed as dist

import horovod.torch as hvd

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
assert "horovod" not in sys.modules, "import torch pays for no more than the name of the backend"
dist.init_process_group("hvd")
tensor = torch.ones(1)
dist.all_reduce(tensor)
place = [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")]
assert dist.get_rank() == place[0]
assert "torch._dynamo" not in sys.modules, "an operation does not pay for the compiler"
# At once: ranks may share an output without a buffer.
sys.stdout.write(f"size {dist.get_world_size()} sum {int(tensor.item())} place {place}\\n")
dist.destroy_process_group()
"""


@pytest.mark.slow("three processes import PyTorch")
def test_horovodrun_starts_a_script_that_imports_torch_alone(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "3", [sys.executable, "-c", SCRIPT], env={"HOROVOD_PRETEND_HOSTS": "2,1"})
    places = sorted(line.partition("size ")[2] for line in done.stdout.splitlines())
    expected = [f"3 sum 3 place {place}" for place in ([0, 0, 0], [1, 1, 0], [2, 0, 1])]
    assert done.code == 0 and places == expected, done


@pytest.mark.thorough
def test_torchrun_starts_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(tmp_path / "script.py")]
    # A home of its own: the ranks find each other by torch's store, not by a file there.
    environment = {**os.environ, "HOME": "/proc/none", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("size 2 sum 2 place") == 2, done


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_mpirun_starts_it(name: str) -> None:
    mpirun, _ = mpi(name)
    words = [*mpirun, "-np", "2", sys.executable, "-c", SCRIPT]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("size 2 sum 2 place") == 2, done


def test_processes_that_only_torch_knows_meet_by_its_store(tmp_path: Path) -> None:
    def run(path: str, rank: int) -> list[float]:
        for variable in [name for name in os.environ if name.startswith("HOROVOD_")]:
            del os.environ[variable]
        with pytest.raises(ValueError, match="environment variable RANK expected"):  # what torch itself says
            dist.init_process_group("hvd")
        results = []
        for attempt in range(2):  # the second time the first job's message is in the store
            dist.init_process_group("hvd", init_method=f"file://{path}", rank=rank, world_size=3)
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert (hvd.rank(), hvd.size()) == (rank, 3)
            dist.destroy_process_group()
            assert not hvd.is_initialized()  # the group had begun it
            results.append(tensor.item() + attempt)
        return results

    with World(3) as world:
        assert world.run(run, per_rank=[(str(tmp_path / "store"), rank) for rank in range(3)]) == [[3.0, 4.0]] * 3


def test_a_rank_that_differs_from_horovods_is_refused(tmp_path: Path) -> None:
    def run(path: str, rank: int) -> str:
        with pytest.raises(ValueError) as caught:
            dist.init_process_group("hvd", init_method=f"file://{path}", rank=1 - rank, world_size=2)
        return str(caught.value)

    with World(2) as world:
        texts = world.run(run, per_rank=[(str(tmp_path / "store"), rank) for rank in range(2)])
    assert "as rank 1 of 2, but Horovod has started this process as rank 0 of 2\nhint: give init_p" in texts[0]
    assert "Lightning" in texts[0]  # under horovodrun it numbers the ranks itself, unless the group is there


def test_a_group_of_hvd_beside_a_default_group_of_gloo_is_refused(tmp_path: Path) -> None:
    def run() -> None:
        dist.init_process_group("gloo")
        with pytest.raises(ValueError, match="needs a default process group of the backend hvd, got gloo"):
            dist.new_group(backend="hvd")
        dist.barrier()  # the other rank may not have connected yet
        dist.destroy_process_group()

    with World(2) as world:
        world.run(run)


@pytest.mark.thorough
def test_the_example_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    words: list[Any] = [sys.executable, str(EXAMPLES / "12_torch_fsdp" / "train.py"), "--data-dir", mnist_folder()]
    words += ["--images", "6000", "--checkpoint", str(tmp_path / "lenet")]
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled"), "OMP_NUM_THREADS": "1"}
    first = run_job(tmp_path, "-np", "2", words, env=environment)
    assert first.code == 0 and "epoch 1: loss" in first.stdout, first
    second = run_job(tmp_path, "-np", "3", [*words, "--resume"], env=environment)
    assert second.code == 0 and "3 ranks go on after epoch 1" in second.stdout, second
    assert "epoch 2: loss" in second.stdout and float(second.stdout.split("accuracy ")[1].split()[0]) > 0.8, second
