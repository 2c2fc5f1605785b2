# SPDX-License-Identifier: Apache-2.0
"""The commands and tools as a user runs them, on their own files and on MNIST."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import resource
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.caffe import by_rank, caffe, digits_lmdb, losses, small_training, write
from support.examples import EXAMPLES, mnist_folder
from support.world import WorldPool

for module in ("torch", "google.protobuf", "h5py", "lmdb"):
    pytest.importorskip(module, reason=f"not run: {module} is not installed")

from horovod.caffe.data.records import Lmdb, image_of
from horovod.caffe.files import read_blob, read_weights
from horovod.caffe.replicas import Replicas
from horovod.caffe.tools import compute_image_mean, convert_imageset, convert_mnist_data


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        ((), 0, r"usage: caffe <command> <flags>"),
        (("train", "test"), 0, r"usage: caffe <command> <flags>"),
        (("tran",), 134, r"^F\d{4} .*Check failed: Unknown action: tran.*\n.*did you mean 'train'"),
        (("train",), 134, r"^F\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ .*\] Check failed: Need a solver definition to train\."),
        (("train", "-solver=x", "-weights=a", "-snapshot=b"), 134, "but not both"),
        (("train", "--solver=missing.prototxt"), 134, r"missing.prototxt: cannot be read"),
        (("test",), 134, "Need a model definition to score"),
        (("train", "--slover=x"), 1, r"ERROR: unrecognized arguments: --slover=x\nhint: did you mean '--solver'\?"),
        (
            ("time", "-iteratons", "5"),
            1,
            r"ERROR: unrecognized arguments: -iteratons.*\nhint: did you mean '--iterations'",
        ),
        (("time", "--noforwardonly"), 1, r"\nhint: did you mean '--noforward_only'\?"),
        (("train", "--zzz"), 1, r"ERROR: unrecognized arguments: --zzz\nusage: "),
        (("device_query",), 0, r"\] Device: CPU with \d+ core"),
    ],
)
def test_wrong_command_lines_end_as_caffes_do(
    arguments: tuple[str, ...], status: int, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from horovod.caffe.cli import main

    try:
        got = main(arguments)
    except SystemExit as error:
        got = int(error.code or 0)
    printed = capfd.readouterr()
    assert got == status and re.search(expected, printed.out + printed.err, re.MULTILINE), printed


def idx(folder: Path, name: str, values: np.ndarray) -> str:
    """A file of MNIST's form."""
    path = folder / name
    path.write_bytes(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes())
    return str(path)


@pytest.fixture
def lenet(tmp_path: Path) -> Path:
    """The example's folder with databases of MNIST's digits."""
    folder = Path(mnist_folder())
    for name in ("lenet_solver.prototxt", "lenet_train_test.prototxt"):
        shutil.copy(EXAMPLES / "08_caffe_mnist" / name, tmp_path)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        files = [str(folder / f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
        assert convert_mnist_data.main([*files, str(tmp_path / f"mnist_{part}_lmdb")]) == 0
    return tmp_path


def edit(path: Path, **settings: object) -> None:
    """Changes settings of a solver's file."""
    text = path.read_text()
    for name, value in settings.items():
        text = re.sub(rf"^{name}:.*$", "", text, flags=re.MULTILINE) + f"\n{name}: {value}"
    path.write_text(text)


def share(folder: Path, ranks: int) -> None:
    """Makes each rank's batch a part of 64 images."""
    net = folder / "lenet_train_test.prototxt"
    net.write_text(net.read_text().replace("batch_size: 64", f"batch_size: {64 // ranks}"))


def accuracy(log: str) -> float:
    """The last test's."""
    return float(re.findall(r"Test net output #0: accuracy = (\S+)", log)[-1])


def called(folder: str, *arguments: str) -> tuple[int, str]:
    """Runs in a rank: the command's status and what it prints, in this working directory."""
    from horovod.caffe.cli import main

    before, log = os.getcwd(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stderr(log):
            return main(arguments), log.getvalue()
    finally:
        os.chdir(before)


@pytest.mark.slow("trains LeNet")
def test_lenet_trains_tests_and_goes_on(lenet: Path, worlds: WorldPool) -> None:
    solver = lenet / "lenet_solver.prototxt"
    edit(solver, max_iter=50, display=25, snapshot=40, test_initialization="false", random_seed=1)
    edit(solver, test_iter=4, test_interval=50)
    share(lenet, 4)
    first = caffe("train", "--solver=lenet_solver.prototxt", ranks=2, cwd=lenet)
    assert first.returncode == 0, first.stderr
    assert accuracy(first.stderr) > 0.7 and "[1]<" not in first.stdout + first.stderr, "one rank talks for all"
    assert [iteration for iteration, _ in losses(first.stderr)] == [0, 25, 50]
    resumed = ["-solver", "lenet_solver.prototxt", "-snapshot", "lenet_iter_40.solverstate"]
    status, log = worlds(1).run(called, str(lenet), "train", *resumed)[0]
    assert status == 0 and losses(log)[0][0] == 50, log
    arguments = ["-model", "lenet_train_test.prototxt", "-iterations", "4"]
    weights = ["-weights", "lenet_iter_50.caffemodel"]
    (status, log), other = worlds(2).run(called, str(lenet), "test", *arguments, *weights)
    assert status == 0 and other == (0, "") and re.search(r"\] Batch 1, accuracy = \S+\n", log), log
    assert float(re.findall(r"\] accuracy = (\S+)", log)[-1]) > 0.7
    status, log = worlds(1).run(called, str(lenet), "time", *arguments)[0]
    assert status == 0 and re.search(r"conv1\tbackward: \S+ ms\.", log), log
    assert "Average Forward-Backward: " in log


@pytest.mark.thorough
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_lenet_learns_mnist(ranks: int, lenet: Path) -> None:
    """10,000 iterations, as Caffe's own solver has them, with 64 images among the ranks."""
    edit(lenet / "lenet_solver.prototxt", max_iter=10000, test_interval=5000, random_seed=1)
    share(lenet, ranks)
    result = caffe("train", "--solver=lenet_solver.prototxt", ranks=ranks, cwd=lenet)
    assert result.returncode == 0 and accuracy(result.stderr) >= 0.99, result.stderr


@pytest.mark.thorough
def test_two_ranks_are_one_that_adds_the_halves_of_its_batch_bit_for_bit(lenet: Path) -> None:
    """In single precision: nothing but the order of the sums tells two ranks from one."""
    edit(lenet / "lenet_solver.prototxt", max_iter=100, test_interval=100, display=1, random_seed=1)
    share(lenet, 2)
    pair = caffe("train", "--solver=lenet_solver.prototxt", ranks=2, cwd=lenet)
    both = read_weights(str(lenet / "lenet_iter_100.caffemodel"))
    by_rank(lenet / "mnist_train_lmdb", count=6400, batch=64, ranks=2)
    edit(lenet / "lenet_solver.prototxt", iter_size=2)
    alone = caffe("train", "--solver=lenet_solver.prototxt", cwd=lenet)
    halves = read_weights(str(lenet / "lenet_iter_100.caffemodel"))
    assert len(losses(pair.stderr)) == 101 and losses(pair.stderr)[:-1] == losses(alone.stderr)[:-1], alone.stderr
    assert both.keys() == halves.keys()
    for name, blobs in both.items():
        for mine, theirs in zip(blobs, halves[name], strict=True):
            assert mine.tobytes() == theirs.tobytes(), name


@pytest.mark.parametrize(
    ("flags", "mode", "expected"),
    [
        (("--gpu=all",), "GPU", "--gpu=all: this version computes on the CPU"),
        (("--gpu=0",), "CPU", "--gpu=0: this version computes on the CPU"),
        ((), "GPU", "solver_mode is GPU: this version computes on the CPU"),
    ],
)
def test_a_gpu_is_refused_in_the_words_that_asked_for_it(
    flags: tuple[str, ...], mode: str, expected: str, worlds: WorldPool, tmp_path: Path
) -> None:
    solver = Path(small_training(tmp_path, 6))
    text = solver.read_text().replace("solver_mode: CPU", f"solver_mode: {mode}")
    write(tmp_path, "solver.prototxt", text.replace("max_iter: 20", "max_iter: 1"))
    status, log = worlds(1).run(called, str(tmp_path), "train", "-solver=solver.prototxt", *flags)[0]
    said = [line.split("] ", 1)[1] for line in log.splitlines() if "computes on the CPU" in line]
    assert (status, said) == (0, [expected]), log


def test_every_rank_says_what_is_wrong_in_a_file(tmp_path: Path, worlds: WorldPool) -> None:
    digits_lmdb(tmp_path / "train", 8)
    net = 'layer { name: "d" type: "Data" top: "x" data_param { source: "train" batch_size: 4 backend: LMDB } }\n'
    net += 'layer { name: "ip" type: "InnerProdukt" bottom: "x" top: "y" }'
    write(tmp_path, "net.prototxt", net)
    write(tmp_path, "solver.prototxt", 'net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 5 solver_mode: CPU')
    for status, log in worlds(2).run(called, str(tmp_path), "train", "-solver=solver.prototxt"):
        assert status == 134, log
        assert "net.prototxt:2: layer 'ip': unknown type 'InnerProdukt'" in log and "did you mean 'InnerProduct'" in log


def test_a_job_of_caffe_cannot_be_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_PROFILE", "profile.json")
    with pytest.raises(ValueError, match="gradients of Caffe cannot be profiled"):
        Replicas.of_this_job()


def test_the_mnist_tool_refuses_other_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from horovod.caffe.tools.convert_mnist_data import main

    images = idx(tmp_path, "images", np.zeros((3, 4, 4), np.uint8))
    labels = idx(tmp_path, "labels", np.zeros(2, np.uint8))
    assert main([images, labels, str(tmp_path / "db")]) == 134
    assert "these are not MNIST's image and label files" in capfd.readouterr().err
    assert main([images, str(tmp_path / "missing"), str(tmp_path / "db")]) == 134


def test_images_become_a_database_with_a_mean(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cv2 = pytest.importorskip("cv2", reason="not run: opencv-python-headless is not installed")

    pixels = [np.random.default_rng(seed).integers(0, 256, (5, 4, 3), np.uint8) for seed in range(3)]
    for index, image in enumerate(pixels):
        cv2.imwrite(str(tmp_path / f"{index} a.png"), image)
    listed = write(tmp_path, "list.txt", "0 a.png 7\n1 a.png 8\n2 a.png 9\n")
    for flags, name in (([], "plain"), (["--encoded"], "encoded")):
        database = str(tmp_path / name)
        assert convert_imageset.main([*flags, f"{tmp_path}/", listed, database]) == 0
        records, again = Lmdb(database), Lmdb(database)
        again.close()
        assert [records[index].label for index in range(3)] == [7, 8, 9]
        for index, image in enumerate(pixels):
            assert np.array_equal(image_of(records[index]), image.transpose(2, 0, 1)), "in BGR, channels first"
        mean = str(tmp_path / f"{name}.binaryproto")
        assert compute_image_mean.main([database, mean]) == 0
        assert np.abs(read_blob(mean)[0] - np.mean(pixels, 0).transpose(2, 0, 1)).max() < 1e-4
        assert convert_imageset.main([f"{tmp_path}/", listed, database]) == 134, "a database is not overwritten"
    assert "mean_value channel [0]: " in capfd.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--encoded"]])
def test_an_image_that_cannot_be_read_is_named_and_left_out(
    flags: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cv2 = pytest.importorskip("cv2", reason="not run: opencv-python-headless is not installed")

    for name in ("a.png", "d.png"):
        cv2.imwrite(str(tmp_path / name), np.zeros((5, 4, 3), np.uint8))
    write(tmp_path, "b.png", "this is no image")
    listed = write(tmp_path, "list.txt", "a.png 1\nb.png 2\nc.png 3\nd.png 4\n")
    assert convert_imageset.main([*flags, f"{tmp_path}/", listed, str(tmp_path / "db")]) == 0
    records = Lmdb(str(tmp_path / "db"))
    assert records.keys == [b"00000000_a.png", b"00000003_d.png"], "the keys are those of the list's lines, as Caffe's"
    assert [datum.label for datum in records] == [1, 4]
    printed = capfd.readouterr().err
    assert re.search(r"^E\d{4} .*/b\.png: ", printed, re.MULTILINE), printed
    assert re.search(r"^E\d{4} .*/c\.png: cannot be read: ", printed, re.MULTILINE), printed
    assert "2 of 4 images could not be read" in printed and "Processed 2 files." in printed
    none = write(tmp_path, "none.txt", "b.png 2\n")
    assert convert_imageset.main([*flags, f"{tmp_path}/", none, str(tmp_path / "none")]) == 134
    assert "none of its 1 images could be read" in capfd.readouterr().err


TOOLS = ["convert_mnist_data", "leveldb", "convert_imageset", "compute_image_mean", "parse_log"]


@contextmanager
def full_disk(room_bytes: int) -> Iterator[None]:
    """A file cannot grow beyond that size: writes fail as on a full disk, with another cause in the text."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_full_disk_ends_a_tool_with_one_line_and_leaves_nothing(
    tool: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    if tool == "leveldb":
        pytest.importorskip("plyvel", reason="not run: plyvel is not installed")
    if tool in ("convert_mnist_data", "leveldb"):
        images = idx(tmp_path, "images", np.random.default_rng(0).integers(0, 256, (300, 28, 28)).astype(np.uint8))
        arguments = [images, idx(tmp_path, "labels", np.zeros(300, np.uint8)), str(out)]
        arguments = (["--backend=leveldb"] if tool == "leveldb" else []) + arguments
        tool = "convert_mnist_data"
    elif tool == "convert_imageset":
        cv2 = pytest.importorskip("cv2", reason="not run: opencv-python-headless is not installed")
        cv2.imwrite(str(tmp_path / "a.png"), np.zeros((200, 200, 3), np.uint8))
        arguments = [f"{tmp_path}/", write(tmp_path, "list.txt", "a.png 1\n"), str(out)]
    elif tool == "compute_image_mean":
        convert = importlib.import_module("horovod.caffe.tools.convert_mnist_data")
        images = idx(tmp_path, "images", np.zeros((2, 100, 100), np.uint8))
        assert convert.main([images, idx(tmp_path, "labels", np.zeros(2, np.uint8)), str(tmp_path / "db")]) == 0
        arguments = [str(tmp_path / "db"), str(out)]
    else:
        line = "I1121 02:13:14.000000  42 solver.cpp:1] Iteration {0}, loss = 2.4\n"
        line += "I1121 02:13:14.000000  42 solver.cpp:1]     Train net output #0: loss = 2.4 (* 1 = 2.4 loss)\n"
        out.mkdir()
        arguments = [write(tmp_path, "log", "".join(map(line.format, range(3000)))), str(out)]
    with full_disk(20_000):
        status = importlib.import_module(f"horovod.caffe.tools.{tool}").main(arguments)
    printed = capfd.readouterr().err
    assert status == 134 and "Traceback" not in printed, printed
    assert re.search(rf"^F\d{{4}} .*{out}\S*: cannot be written: .*(too large|output error)", printed, re.MULTILINE), (
        printed
    )
    assert not [path for path in tmp_path.rglob("*") if "out" in path.name and path.is_file() or ".part" in path.name]


def test_the_error_of_a_full_disk_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A real one: LMDB says "Input/output error" if the disk takes a part of what it writes."""
    images = idx(tmp_path, "images", np.random.default_rng(0).integers(0, 256, (900, 28, 28)).astype(np.uint8))
    labels = idx(tmp_path, "labels", np.zeros(900, np.uint8))
    (disk := tmp_path / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", disk], capture_output=True).returncode:
        pytest.skip("not run: this user cannot mount")
    try:
        assert convert_mnist_data.main([images, labels, str(disk / "out")]) == 134
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)
    assert re.search(
        rf"{disk}/out: cannot be written: .*; the disk is full: \d+ bytes are left", capfd.readouterr().err
    )


def test_a_log_becomes_two_tables(tmp_path: Path) -> None:
    from horovod.caffe.tools.parse_log import main

    log = write(
        tmp_path,
        "train.log",
        """I1121 02:13:11.500000  42 solver.cpp:1] Solving LeNet
I1121 02:13:12.500000  42 solver.cpp:1] Iteration 0, Testing net (#0)
I1121 02:13:13.500000  42 solver.cpp:1]     Test net output #0: accuracy = 0.1
I1121 02:13:13.500000  42 solver.cpp:1]     Test net output #1: loss = 2.3 (* 1 = 2.3 loss)
I1121 02:13:14.000000  42 solver.cpp:1] Iteration 0 (8 iter/s, 1s/100 iters), loss = 2.4
I1121 02:13:14.000000  42 solver.cpp:1]     Train net output #0: loss = 2.4 (* 1 = 2.4 loss)
I1121 02:13:14.000000  42 solver.cpp:1] Iteration 0, lr = 0.01
I1121 02:13:24.000000  42 solver.cpp:1] Iteration 100, loss = 1e-3
I1121 02:13:24.000000  42 solver.cpp:1]     Train net output #0: loss = 1e-3 (* 1 = 1e-3 loss)
I1121 02:13:24.000000  42 solver.cpp:1] Iteration 100, lr = 0.005
""",
    )
    assert main([log, str(tmp_path)]) == 0
    train = (tmp_path / "train.log.train").read_text().split()
    assert train == ["NumIters,Seconds,LearningRate,loss", "0,2.5,0.01,2.4", "100,12.5,0.005,0.001"]
    test = (tmp_path / "train.log.test").read_text().split()
    assert test == ["NumIters,Seconds,LearningRate,accuracy,loss", "0,2.0,nan,0.1,2.3"]
