# SPDX-License-Identifier: Apache-2.0
"""The MNIST example over 2 and 4 hosts, whatever starts its four ranks: the weights are those of one host, bit for bit.

Two hosts of two ranks add in another order than one host of four. One host that pretends to be two adds as they do; its
accuracy is compared with that of one host that pretends nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.cluster import MakeCluster
from support.examples import EXAMPLES, mnist_folder
from support.jobs import run_job
from support.pages import ROOT
from support.schedulers.launchers import LAUNCHERS, command_lines, ready_for
from support.schedulers.slurm import wait_for_steps
from support.started import Folder, end_of, environment

# An MPI's Python lacks PyTorch: this one's comes behind its own packages.
WITH_PYTORCH = """
import runpy, sys
folder, *sys.argv = sys.argv[1:]
sys.path.append(folder)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LEAST_ACCURACY = 0.95
MOST_APART = 0.005  # for another order of additions
TRAINED_S = 120.0
# MXNet has an environment of its own: make install-mxnet.
WITH_MXNET = ROOT / ".venv-mxnet" / "bin" / "python"
CASES = [(launcher, hosts) for hosts in (2, 4) for launcher in LAUNCHERS]
pytestmark = pytest.mark.thorough


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a job has come to."""

    accuracy: float
    weights: dict[str, Any]

    @classmethod
    def of(cls, said: str, checkpoint: Path) -> Trained:
        import torch

        found = re.search(r"test accuracy (\d\.\d+) \(10000 images\)", said)
        assert found is not None and re.search(r"ranks: 4, \d+ training images, MNIST", said), said
        return cls(float(found[1]), torch.load(checkpoint)["model"])


@pytest.fixture(scope="module")
def data() -> str:
    """The folder of the MNIST files."""
    return mnist_folder()


def script(folder: Path, data: str) -> list[str]:
    """Words for Python."""
    import torch

    (folder / "with_pytorch.py").write_text(WITH_PYTORCH)
    packages = str(Path(torch.__file__).parents[1])
    train = [str(EXAMPLES / "01_torch_mnist" / "train.py"), "--data-dir", data, "--epochs", "1"]
    return [str(folder / "with_pytorch.py"), packages, *train]


@functools.cache
def on_one_host(data: str, pretended: str = "") -> Trained:
    """`pretended`: the ranks of each host that this machine shall take itself for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = [sys.executable, *script(folder, data), "--checkpoint", str(folder / "weights")]
        env = {"OMP_NUM_THREADS": "1", "TMPDIR": name, **({"HOROVOD_PRETEND_HOSTS": pretended} if pretended else {})}
        done = run_job(folder, "-np", "4", job, env=env)
        assert done.code == 0, done
        return Trained.of(done.stdout, folder / "weights")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("launcher", "hosts"), CASES)
def test_mnist_trains_as_on_one_host(
    cluster: MakeCluster, tmp_path: Path, data: str, launcher: str, hosts: int
) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")
    expected = on_one_host(data, "2,2" if hosts == 2 else "")
    made, folder, checkpoint = cluster(hosts), Folder(tmp_path), tmp_path / "weights"
    with ready_for(launcher, made):
        runs = []
        for host, words, more in command_lines(
            launcher, made.hosts, [*script(tmp_path, data), "--checkpoint", str(checkpoint)]
        ):
            env = environment(folder.home, TMPDIR="/tmp", **more)
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            runs.append(host.popen(*words, env=env, stdin=null, stdout=pipe, stderr=pipe, text=True))
        ends = end_of(runs, TRAINED_S)
        wait_for_steps(made.hosts)
    assert {code for code, _ in ends} == {0}, ends
    trained = Trained.of("".join(said for _, said in ends), checkpoint)
    differing = [name for name, weights in trained.weights.items() if not weights.equal(expected.weights[name])]
    assert (trained.accuracy, differing) == (expected.accuracy, [])
    assert trained.accuracy >= LEAST_ACCURACY
    assert abs(trained.accuracy - on_one_host(data).accuracy) <= MOST_APART


@pytest.mark.timeout(400)
def test_mxnet_trains_as_on_one_host(cluster: MakeCluster, tmp_path: Path, data: str) -> None:
    if not WITH_MXNET.exists():
        pytest.skip("not run: mxnet is not installed")
    script = [str(WITH_MXNET), str(EXAMPLES / "09_mxnet_mnist" / "train.py"), "--data-dir", data, "--epochs", "1"]
    one, _ = cluster(2).hosts
    ways = {
        "hosts": (["-np", "4", "-H", "host0:2,host1:2"], {}, one),
        "pretended": (["-np", "4"], {"HOROVOD_PRETEND_HOSTS": "2,2"}, None),
    }
    for way, (flags, more, on) in ways.items():
        checkpoint = ["--checkpoint", str(tmp_path / way)]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "", **more}  # nothing of this environment
        done = run_job(tmp_path, flags, [*script, *checkpoint], env=env, on=on)
        assert done.code == 0, done.stderr
        found = re.search(r"epoch 1: test accuracy (\d\.\d+) \(10000 images\)", done.stdout)
        assert found is not None and float(found[1]) >= LEAST_ACCURACY, done.stdout
    assert (tmp_path / "hosts").read_bytes() == (tmp_path / "pretended").read_bytes()
