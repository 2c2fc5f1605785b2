# SPDX-License-Identifier: Apache-2.0
"""A result's bits depend on the ranks' values and their order alone: not on timing, order of calls, fusion, transport
or instruction set. 161 gradients with the shapes of ResNet-50 (a quarter of its channels), in six ways; with THOROUGH=1
four times each."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import numpy as np
import pytest
from support import reference
from support.extent import THOROUGH
from support.world import WorldPool

from horovod.bench.gradients import resnet50_shapes
from horovod.core import native
from horovod.core.context import statistics

torch = pytest.importorskip("torch", reason="not run: torch is not installed")

import horovod.torch as hvd

# (ranks, transport, instruction set, fusion threshold in bytes)
WAYS = [
    (3, "shm", "best", 128 << 20),
    (3, "tcp", "plain", 0),
    (3, "tcp", "avx2", 1 << 16),
    (4, "shm", "avx2", 1 << 20),
    (4, "shm", "plain", 0),
    (4, "tcp", "avx512", 128 << 20),
]
RUNS_PER_WAY = 4 if THOROUGH else 1


def gradient(rank: int, index: int, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    # Many magnitudes: sums in another order would have other bits.
    random = np.random.default_rng((rank, index))
    span = 8 if dtype == "float16" else 20
    return (random.standard_normal(shape) * np.exp2(random.integers(-span, span, shape))).astype(dtype)


def reduced_digests(run: int, dtype: str, divisor: int) -> tuple[list[bytes], str]:
    """Runs in a rank: the bits of every averaged gradient, and how they were made."""
    hvd.init()
    torch.set_num_threads(1)
    random = np.random.default_rng((run, hvd.rank()))
    shapes = resnet50_shapes(divisor)
    tensors = [torch.from_numpy(gradient(hvd.rank(), i, shape, dtype)) for i, shape in enumerate(shapes)]
    handles = {}
    for index in random.permutation(len(tensors)):
        if random.random() < 0.05:
            time.sleep(random.random() * 0.005)
        handles[index] = hvd.allreduce_async_(tensors[index], name=f"gradient.{index}")
    for index in random.permutation(len(tensors)):
        hvd.synchronize(handles[index])
    return [hashlib.sha256(tensor.numpy().tobytes()).digest() for tensor in tensors], str(statistics())


def expected_digests(size: int, dtype: str, divisor: int) -> list[bytes]:
    digests = []
    for index, shape in enumerate(resnet50_shapes(divisor)):
        inputs = [gradient(rank, index, shape, dtype) for rank in range(size)]
        digests.append(hashlib.sha256(reference.allreduce(inputs, reference.AVERAGE).tobytes()).digest())
    return digests


def test_the_shapes_are_those_of_resnet_50() -> None:
    shapes = resnet50_shapes(1)
    assert len(shapes) == 161
    assert sum(int(np.prod(shape)) for shape in shapes) == 25_557_032


@pytest.mark.parametrize(("size", "transport", "instructions", "threshold"), WAYS)
def test_bits_are_those_of_the_fold_in_rank_order(
    worlds: WorldPool, size: int, transport: str, instructions: str, threshold: int
) -> None:
    available = json.loads(native.library().hvd_build_info())["instruction_sets"]
    if instructions not in ("best", *available):
        pytest.skip(f"hardware: this processor has no {instructions}")
    env = {
        "HOROVOD_TRANSPORT": transport,
        "HOROVOD_INSTRUCTION_SET": instructions,
        "HOROVOD_FUSION_THRESHOLD": str(threshold),
    }
    expected = expected_digests(size, "float32", 4)
    for run in range(RUNS_PER_WAY):
        for digests, how in worlds(size, env).run(reduced_digests, run, "float32", 4):
            wrong = [index for index, digest in enumerate(digests) if digest != expected[index]]
            assert wrong == [], f"run {run}: {how}"


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_bits_of_other_dtypes(worlds: WorldPool, dtype: str) -> None:
    expected = expected_digests(3, dtype, 16)
    for transport in ("shm", "tcp"):
        for digests, how in worlds(3, {"HOROVOD_TRANSPORT": transport}).run(reduced_digests, 0, dtype, 16):
            assert digests == expected, how


def test_groups_of_hosts_are_a_level_of_the_fold(worlds: WorldPool) -> None:
    # Two groups of two hosts: the sums of each are added, and only then both.
    expected = []
    for index, shape in enumerate(resnet50_shapes(4)):
        of_group = [
            reference.allreduce([gradient(rank, index, shape, "float32") for rank in group], reference.SUM)
            for group in ((0, 1), (2, 3))
        ]
        average = (of_group[0] + of_group[1]) * np.float32(0.25)
        expected.append(hashlib.sha256(average.tobytes()).digest())
    assert expected != expected_digests(4, "float32", 4)
    env = {"HOROVOD_PRETEND_HOSTS": "1,1,1,1", "HOROVOD_HOST_GROUP_SIZE": "2"}
    for digests, how in worlds(4, env).run(reduced_digests, 0, "float32", 4):
        assert digests == expected, how
