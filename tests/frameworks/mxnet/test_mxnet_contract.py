# SPDX-License-Identifier: Apache-2.0
"""The contract of tests/contract, run through MXNet: on two ranks over shared memory, on three over TCP, and on two
hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contract import test_errors as errors
from contract import test_results as results
from support import contract
from support.extent import THOROUGH
from support.world import World, WorldPool

from horovod.core.native import DTYPE_NAMES

pytest.importorskip("mxnet", reason="not run: mxnet is not installed")

NOT_THERE = ("int16", "uint16", "uint32", "uint64")  # in MXNet
DTYPES = [name for name in DTYPE_NAMES if name not in NOT_THERE]
WHAT_TO_RUN = [(size, dtype) for size in (2, 3, 4) for dtype in DTYPES if size == 2 or dtype == "float32" or THOROUGH]
# MXNet has no barrier that meets an allgather (each call has a name, which begins with its kind), no handles and
# knows every dtype that it has, and takes an empty list.
NOT_MXNETS = {"kind", "empty group", "gathered list", "no list", "unsupported", "group of nothing"}
# What MXNet's operations have no keyword for.
NO_KEYWORD = {"compression", "compression of a group", "scattered compression", "scattered group"}
ROWS = [
    *contract.rows("mxnet", (), NOT_MXNETS | NO_KEYWORD, [errors.test_average_still_works_and_warns]),
    *contract.disagreements("mxnet", 2, NOT_MXNETS),
    *contract.disagreements("mxnet", 3, NOT_MXNETS),
]


def mxnet_world(worlds: WorldPool, size: int, **more: str) -> World:
    return worlds(size, {"HOROVOD_TRANSPORT": "shm", "HOROVOD_DYNAMIC_PROCESS_SETS": "1", **more})


@pytest.fixture
def mxnet_worlds(worlds: WorldPool) -> Any:
    return contract.any_transport(mxnet_world, worlds)


@pytest.mark.parametrize(("size", "dtype"), WHAT_TO_RUN)
def test_results(mxnet_worlds: Any, size: int, dtype: str) -> None:
    for wrong in mxnet_worlds(size).run(results.wrong_rows, "mxnet", dtype):
        assert wrong == []


@pytest.mark.parametrize(("test", "arguments"), ROWS)
def test_contract(mxnet_worlds: Any, test: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    test(mxnet_worlds, *arguments)
