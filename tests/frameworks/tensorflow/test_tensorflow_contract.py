# SPDX-License-Identifier: Apache-2.0
"""The contract of tests/contract, run through TensorFlow: eagerly, in tf.function and in graphs of TensorFlow 1, on two
ranks over shared memory, on three over TCP, and on two hosts.

To make a graph for every row is slow, so the two modes that do run a part of the dtypes, and worlds but the first a
dtype for each mode; all of them with THOROUGH=1, which `make check-all` sets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contract import test_results as results
from support import contract
from support.extent import THOROUGH
from support.frameworks import TENSORFLOW, tensorflow_world
from support.world import WorldPool

from horovod.core.native import DTYPE_NAMES

pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")

TRACED_DTYPES = DTYPE_NAMES if THOROUGH else ("float32",)
EAGERLY = "tensorflow"
WHAT_TO_RUN = [
    pytest.param(size, mode, dtype, marks=[pytest.mark.oldest_tensorflow] if (size, dtype) == (2, "float32") else [])
    for size in (2, 3, 4)
    for mode in TENSORFLOW
    for dtype in (DTYPE_NAMES if mode == EAGERLY else TRACED_DTYPES)
    if size == 2 or (mode, dtype) == (EAGERLY, "float32") or THOROUGH
]
# TensorFlow has other forms (a list of variables, nothing in flight), or takes what is refused elsewhere.
NOT_TENSORFLOWS = {"no tensor", "no list", "empty group", "gathered list", "splits dtype"}
ROWS = [*contract.rows(EAGERLY, TENSORFLOW, NOT_TENSORFLOWS), contract.compiled(EAGERLY)]
for size in (2, 3):
    for mode in TENSORFLOW if size == 2 or THOROUGH else [EAGERLY]:
        # In graphs two kinds of operations never meet: each has a name, which begins with its kind.
        ROWS += contract.disagreements(mode, size, () if mode == EAGERLY else {"kind"})


@pytest.fixture
def tensorflow_worlds(worlds: WorldPool) -> Any:
    return contract.any_transport(tensorflow_world, worlds)


@pytest.mark.parametrize(("size", "framework", "dtype"), WHAT_TO_RUN)
def test_results(tensorflow_worlds: Any, size: int, framework: str, dtype: str) -> None:
    for wrong in tensorflow_worlds(size).run(results.wrong_rows, framework, dtype):
        assert wrong == []


@pytest.mark.parametrize(("test", "arguments"), ROWS)
def test_contract(tensorflow_worlds: Any, test: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    test(tensorflow_worlds, *arguments)
