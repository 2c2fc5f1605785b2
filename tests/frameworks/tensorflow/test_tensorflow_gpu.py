# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's tensors on GPUs, which the stand-in has: TensorFlow runs the kernels there by itself, in functions and
eagerly. Where TensorFlow has no kernel for a GPU, it copies."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
from contract import test_errors as errors
from contract import test_join as joining
from contract import test_results as results
from support import contract, frameworks
from support.extent import THOROUGH, later
from support.gpu import gpu_worlds as gpu_worlds_of
from support.gpu import standin_library as standin
from support.gpu import tensorflow_on_gpu
from support.jobs import run_job
from support.world import World, WorldPool

from horovod.core.native import DTYPE_NAMES
from horovod.tensorflow import gpus

EAGERLY, TRACED = "tensorflow_gpu", "tensorflow_gpu_function"
OF_RESULTS: list[Any] = [pytest.param("best", 2, EAGERLY, "float32", marks=pytest.mark.oldest_tensorflow)]
OF_RESULTS += [("best", 2, EAGERLY, dtype) for dtype in DTYPE_NAMES if THOROUGH or dtype == "bfloat16"]
OF_RESULTS += [
    later("best", 2, TRACED, "float32"),
    later("best", 3, EAGERLY, "float32"),
    ("host", 2, EAGERLY, "float32"),
]
NOT_HERE = set(errors.DISAGREEMENTS) - {"shape", "dtype", "op"}
ROWS = [
    contract.row(
        results.test_results_over_overlapping_sets_are_those_of_the_reference,
        EAGERLY,
        3,
        "tcp",
        "float32",
        marks=pytest.mark.thorough,
    ),
    contract.row(joining.test_every_allreduce_gets_zeros_from_who_has_joined, EAGERLY, 2, ""),
    *contract.disagreements(EAGERLY, without=NOT_HERE),
    *contract.disagreements(TRACED, without=NOT_HERE),
]


def world_of(worlds: WorldPool, way: str, size: int) -> World:
    return gpu_worlds_of.world_of(worlds, tensorflow_on_gpu.environment, way, size)


@pytest.fixture
def gpu_worlds(worlds: WorldPool) -> Any:
    return gpu_worlds_of.any_transport(worlds, tensorflow_on_gpu.environment)


@pytest.mark.parametrize(("way", "size", "framework", "dtype"), OF_RESULTS)
def test_results(worlds: WorldPool, way: str, size: int, framework: str, dtype: str) -> None:
    gpu_worlds_of.check_results(world_of(worlds, way, size), way, size, framework, dtype)


@pytest.mark.parametrize(("test", "arguments"), ROWS)
def test_contract(gpu_worlds: Any, test: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    test(gpu_worlds, *arguments)


@pytest.mark.parametrize("way", ["best", "host"])
def test_what_the_gpu_still_computes_is_waited_for(worlds: WorldPool, way: str) -> None:
    """The results of operations, too, are input of the GPU's next work."""

    def run() -> tuple[list[float], str]:
        gpu = frameworks.load(EAGERLY)
        hvd = gpu.hvd

        @tf.function
        def step(values: Any) -> Any:
            with tf.device("GPU:0"):
                for _ in range(3):
                    values = -hvd.allreduce(-values, op=hvd.Sum)
                return -hvd.allgather(-values)[:2]

        for _ in range(5):
            result = step(gpu.tensor(np.array([1.0 + hvd.rank(), 2.0], np.float32)))
        return result.numpy().tolist(), standin.races()

    # Of two ranks: 1 + 2, and twice that in each of the next two steps; likewise for 2 + 2.
    assert world_of(worlds, way, 2).run(run) == [([12.0, 16.0], "")] * 2


def test_a_rank_may_begin_with_empty_tensors() -> None:
    """They have no address that tells the GPU, and no operation came before."""

    def run() -> tuple[list[list[float]], str, int]:
        gpu = frameworks.load(EAGERLY)
        mine = np.full((2 * (1 - gpu.hvd.rank()), 3), 5.0, np.float32)
        gathered = gpu.hvd.allgather(gpu.tensor(mine), name="rows").numpy().tolist()
        return gathered, standin.races(), gpu.hvd.statistics()["batches_by_nccl"]

    with World(2, tensorflow_on_gpu.environment()) as world:
        assert world.run(run) == [([[5.0] * 3] * 2, "", 1)] * 2


def test_a_set_may_be_removed_while_the_gpu_ends_an_operation_in_it(worlds: WorldPool) -> None:
    def run() -> tuple[list[float], bool]:
        gpu, library = frameworks.load(EAGERLY), standin.library()
        hvd = gpu.hvd
        some = hvd.add_process_set([0, 1])
        if hvd.rank() == 2:
            return [], hvd.remove_process_set(some)
        mine = gpu.tensor(np.full(2, 1.0 + hvd.rank(), np.float32))
        hvd.allgather(mine, process_set=some)
        stream, before = tensorflow_on_gpu.stream(), hvd.statistics()["batches_by_nccl"]
        library.standin_hold(stream)
        with ThreadPoolExecutor(1) as thread:
            gathered = thread.submit(hvd.allgather, mine, process_set=some)
            while hvd.statistics()["batches_by_nccl"] == before:
                assert not gathered.done(), gathered.result()
            try:
                removed = hvd.remove_process_set(some)
            finally:
                library.standin_release(stream)
            return gathered.result().numpy().tolist(), removed

    gathered = [1.0, 1.0, 2.0, 2.0]
    assert world_of(worlds, "best", 3).run(run) == [(gathered, True), (gathered, True), ([], True)]


def test_training_is_that_of_host_memory(worlds: WorldPool) -> None:
    """A function with a tape, as users write it. TensorFlow's CPU packages run all but the gradients on the CPU."""

    def run() -> tuple[list[float], str, int]:
        gpu = frameworks.load(EAGERLY)
        hvd = gpu.hvd
        rank = hvd.rank()
        with tf.device("CPU:0"):
            weights = tf.Variable([[1.0 + rank], [2.0]])
            bias = tf.Variable(0.5 * (1 + rank))
        rows = tf.constant(np.arange(8, dtype=np.float32).reshape(4, 2) + rank)
        hvd.broadcast_variables([weights, bias], root_rank=0)

        @tf.function
        def step() -> Any:
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                with tf.device("GPU:0"):
                    shown = tf.identity(weights), tf.identity(bias)
                with tf.device("CPU:0"):
                    loss = tf.reduce_mean((rows @ shown[0] + shown[1] - 1.0) ** 2)
            gradients = tape.gradient(loss, [weights, bias])
            weights.assign_sub(0.01 * gradients[0])
            bias.assign_sub(0.01 * gradients[1])
            return loss

        for _ in range(3):
            step()
        result = [*weights.numpy().ravel().tolist(), float(bias.numpy())]
        return result, standin.races(), hvd.statistics()["batches_by_nccl"]

    weights, bias = np.array([[1.0], [2.0]]), 0.5
    for _ in range(3):
        given = [np.arange(8.0).reshape(4, 2) + rank for rank in range(2)]
        off = [rows @ weights + bias - 1.0 for rows in given]
        gradient = sum(2 * rows.T @ one / 4 for rows, one in zip(given, off, strict=True)) / 2
        weights, bias = weights - 0.01 * gradient, bias - 0.01 * sum(2 * one.mean() for one in off) / 2
    for result, races, by_nccl in world_of(worlds, "best", 2).run(run):
        assert races == "" and by_nccl > 0
        np.testing.assert_allclose(result, [*weights.ravel(), bias], rtol=1e-4)


def test_what_a_gpu_cannot_do_on_one_rank_is_told_to_the_other(worlds: WorldPool) -> None:
    def run() -> list[str]:
        gpu, library = frameworks.load(EAGERLY), standin.library()
        said = []

        def reduce(tensor: Any, function: bytes, code: int, times: int) -> None:
            if gpu.hvd.rank() == 1:
                library.standin_fail(function, 0, code, times)
            try:
                gpu.hvd.allreduce(tensor, op=gpu.hvd.Sum)
            except Exception as error:
                said.append(str(error))
            library.standin_fail(function, 0, 0, 0)

        for code in (2, 700, 1):
            reduce(gpu.tensor(np.ones(3, np.float32)), b"cuPointerGetAttributes", code, 1)
        # As much again, for the result: TensorFlow asks for it, for some seconds.
        reduce(gpu.tensor(np.ones(4 << 20, np.float32)), b"standin_allocate", 2, 1 << 30)
        assert gpu.hvd.allreduce(gpu.tensor(np.ones(1, np.float32)), op=gpu.hvd.Sum).numpy() == 2  # the job goes on
        return said

    for said in world_of(worlds, "best", 2).run(run):
        assert len(said) == 4, said
        for text, code in zip(said, (2, 700, 1), strict=False):
            assert f"cuPointerGetAttributes failed: CUDA error {code}" in text, text
        assert "OOM when allocating tensor" in said[3], said[3]


def device_of(file: str) -> Any:
    """As TensorFlow keeps a GPU's stream, but the function that tells it is one of this library."""
    function = ctypes.cast(ctypes.CDLL(file).standin_races, ctypes.c_void_p)
    table = (ctypes.c_void_p * 3)(None, None, function)
    interface = (ctypes.c_void_p * 2)(ctypes.addressof(table))
    device = (ctypes.c_void_p * 1)(ctypes.addressof(interface))
    device.kept = table, interface
    return device


@pytest.mark.parametrize("case", ["nothing", "another library"])
def test_a_stream_that_cannot_be_found_is_an_error_on_all_ranks(tmp_path: Path, case: str) -> None:
    """The other library lies in a folder of TensorFlow's name."""
    file = tmp_path / "tensorflow" / "libother.so"
    file.parent.mkdir()

    def run(file: str | None) -> str:
        tensorflow_on_gpu.with_gpus()

        if os.environ["HOROVOD_RANK"] == "1":
            device = None if file is None else device_of(file)
            address = None if device is None else ctypes.addressof(device)
            unknown = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda context: address)
            run.kept = unknown, device  # type: ignore[attr-defined]
            gpus.exported = lambda: ctypes.cast(unknown, ctypes.c_void_p).value
        gpu = frameworks.load(EAGERLY)
        try:
            gpu.hvd.allreduce(gpu.tensor(np.ones(3, np.float32)), name="x")
        except gpu.hvd.HorovodInternalError as error:
            return str(error)
        return "no error"

    with World(2, tensorflow_on_gpu.environment()) as world:
        shutil.copy(standin.LIBRARY, file)
        first, second = world.run(run, None if case == "nothing" else str(file))
    assert "where this TensorFlow release keeps the stream of a GPU" in second, second
    assert "HOROVOD_TENSORFLOW_GPU=host" in second
    assert "rank 1" in first and "keeps the stream" in first, first


def test_gpus_of_other_makers_are_copied_without_advice() -> None:
    """This TensorFlow was built without CUDA, and has a GPU. Its kernels have no stream of CUDA's."""

    def run() -> tuple[list[float], int]:
        real = gpus.exported
        tensorflow_on_gpu.with_gpus()
        gpus.exported = real
        gpu = frameworks.load(EAGERLY)
        summed = gpu.hvd.allreduce(gpu.tensor(np.ones(3, np.float32)), op=gpu.hvd.Sum).numpy().tolist()
        statistics = gpu.hvd.statistics()
        return summed, statistics["batches_by_nccl"] + statistics["batches_staged"]

    with World(2, tensorflow_on_gpu.environment()) as world:
        assert world.run(run) == [([2.0] * 3, 0)] * 2
        assert "horovod: warning" not in world.output(0)


@pytest.mark.thorough
@pytest.mark.parametrize("level", ["warning", "error"])
def test_through_host_memory_is_said_once(tmp_path: Path, level: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from support import frameworks\n"
        "from support.gpu import tensorflow_on_gpu\n"
        "import numpy as np\n"
        "gpu = frameworks.load('tensorflow_gpu')\n"
        "for step in range(3):\n"
        "    assert gpu.hvd.allreduce(gpu.tensor(np.ones(3, np.float32)), op=gpu.hvd.Sum).numpy().tolist() == [2] * 3\n"
    )
    environment = {**tensorflow_on_gpu.environment(), "HOROVOD_TENSORFLOW_GPU": "host"}
    environment.update(HOROVOD_LOG_LEVEL=level, HOROVOD_LOG_HIDE_TIME="0")
    environment["PYTHONPATH"] = os.pathsep.join([str(standin.ROOT / "tests"), *filter(None, sys.path)])
    done = run_job(tmp_path, "-np", "2", [sys.executable, "train.py"], env=environment)
    assert done.code == 0, done.stderr
    said = re.findall(r"\[0\]<stderr>:(.*)TensorFlow copies its GPUs' tensors to host memory", done.stderr)
    assert len(said) == done.stderr.count("TensorFlow copies") == (1 if level == "warning" else 0)
    if said:
        assert re.fullmatch(r"\[[-\d]+ [:.\d]+\] horovod: warning: ", said[0]), said
        assert "[0]<stderr>:hint: HOROVOD_TENSORFLOW_GPU=device" in done.stderr
