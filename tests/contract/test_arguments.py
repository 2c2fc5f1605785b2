# SPDX-License-Identifier: Apache-2.0
"""The contract, arguments of a wrong type: the error names the argument, what was expected, and what it got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contract.test_errors import check_that_the_others_are_told, ones, works_afterwards
from support import frameworks
from support.frameworks import NAMES
from support.world import WorldPool

WORLDS = [(1, "auto"), (2, "shm"), (3, "tcp"), (4, "2+2")]
NO_SET = r"process_set: expected a ProcessSet, got \[0, 1\]\nhint: hvd.add_process_set\(\[0, 1\]\) makes one"
NO_COMPRESSOR = "compression=(None|3): expected a class with compress and decompress\nhint: hvd.Compression.none"


@pytest.fixture(params=NAMES)
def framework(request: pytest.FixtureRequest) -> str:
    if why := frameworks.missing(request.param):
        pytest.skip(why)
    return str(request.param)


def in_a_list(operation: str, *more: Any) -> Callable[[Any, Any], Any]:
    """A call with a list of ranks in place of a process set."""

    def call(hvd: Any, framework: Any) -> Any:
        tensor = ones(framework, 2)
        tensors = [tensor] if operation.startswith("grouped") else tensor
        return getattr(hvd, operation)(tensors, *more, process_set=[0, 1], name=f"{operation} in a list")

    return call


# name: (the operation, a wrong call of it, its exception, what its text holds)
WRONG: dict[str, tuple[str, Callable[[Any, Any], Any], type[Exception], str]] = {
    f"{operation} in a list": (operation, in_a_list(operation, *more), ValueError, NO_SET)
    for operation, more in {
        "allreduce": (),
        "grouped_allreduce": (),
        "allgather": (),
        "grouped_allgather": (),
        "broadcast": (0,),
        "alltoall": (),
        "reducescatter": (),
        "grouped_reducescatter": (),
    }.items()
} | {
    "list of ops": (
        "allreduce",
        lambda hvd, f: hvd.allreduce(ones(f, 2), op=[1], name="list of ops"),
        ValueError,
        r"op=\[1\]: expected one of Average, Sum",
    ),
    "list of roots": (
        "broadcast",
        lambda hvd, f: hvd.broadcast(ones(f, 2), [0], name="list of roots"),
        ValueError,
        r"root_rank=\[0\]: expected the number of a rank",
    ),
    "one of a group": (
        "grouped_allreduce",
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 2), object()], name="one of a group"),
        Exception,
        "tensor 1 of 2: .*object",
    ),
    "['name']": (
        "allreduce",
        lambda hvd, f: hvd.allreduce(ones(f, 2), name=["name"]),
        TypeError,
        "name: expected a str, got list",
    ),
    "scale of nothing": (
        "allreduce",
        lambda hvd, f: hvd.allreduce(ones(f, 2), postscale_factor=None, name="scale of nothing"),
        ValueError,
        "postscale_factor=None: expected a number",
    ),
    "scale in words": (
        "reducescatter",
        lambda hvd, f: hvd.reducescatter(ones(f, 2), postscale_factor="0.5", name="scale in words"),
        ValueError,
        "postscale_factor='0.5': expected a number",
    ),
    "scale of several": (
        "allreduce",
        lambda hvd, f: hvd.allreduce(ones(f, 2), prescale_factor=ones(f, 2), name="scale of several"),
        ValueError,
        "prescale_factor=.*1.*: expected a number",
    ),
    "splits of nothing": (
        "alltoall",
        lambda hvd, f: hvd.alltoall(ones(f, 1), object(), name="splits of nothing"),
        Exception,
        "splits: expected an? [a-z.]+(Tensor|NDArray|Array).* got object|splits: dtype object|splits=<object object",
    ),
    "compression": (
        "allreduce",
        lambda hvd, f: hvd.allreduce(ones(f, 2), compression="fp16", name="compression"),
        ValueError,
        r"compression='fp16': expected a class with compress and decompress\nhint: hvd.Compression.fp16\b",
    ),
    "compression of a group": (
        "grouped_allreduce",
        lambda hvd, f: hvd.grouped_allreduce([ones(f, 2)], compression=None, name="compression of a group"),
        ValueError,
        NO_COMPRESSOR,
    ),
    "scattered compression": (
        "reducescatter",
        lambda hvd, f: hvd.reducescatter(ones(f, 2), compression=3, name="scattered compression"),
        ValueError,
        NO_COMPRESSOR,
    ),
    "scattered group": (
        "grouped_reducescatter",
        lambda hvd, f: hvd.grouped_reducescatter([ones(f, 2)], compression=3, name="scattered group"),
        ValueError,
        NO_COMPRESSOR,
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize(("size", "transport"), WORLDS)
def test_a_wrong_argument_is_named_and_the_others_do_not_wait(
    worlds: WorldPool, framework: str, size: int, transport: str, case: str
) -> None:
    check_that_the_others_are_told(worlds(size, {"HOROVOD_TRANSPORT": transport}), framework, case, WRONG[case])


class BrokenCompressor:
    """As a user's own may be."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        raise RuntimeError("there is no codebook")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


@pytest.mark.parametrize("operation", ["allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_the_others_do_not_wait_for_a_compressor_that_raises(
    worlds: WorldPool, framework: str, operation: str, named: bool
) -> None:
    def run(framework_name: str) -> str:
        framework = frameworks.load(framework_name)
        hvd = framework.hvd
        broken = {"compression": BrokenCompressor} if hvd.rank() == 1 else {}
        tensor = ones(framework, 2)
        given = [tensor] if operation.startswith("grouped") else tensor
        name = {"name": f"broken {operation}"} if named else {}
        wanted = (RuntimeError if broken else hvd.HorovodInternalError, *framework.wrong_here)
        try:
            getattr(hvd, operation)(given, **name, **broken)
        except wanted as error:
            text = framework.text(error)
        else:
            text = "no error"
        works_afterwards(framework)
        return text

    peer, own = worlds(2).run(run, framework)
    assert own.endswith("there is no codebook") and "rank" not in own
    assert "rank 1" in peer and "there is no codebook" in peer, peer


def test_a_number_may_come_as_an_array_of_one(worlds: WorldPool, framework: str) -> None:
    """It has no hash either, and is no mistake."""

    def run(framework_name: str) -> list[list[float]]:
        import numpy as np

        framework = frameworks.load(framework_name)
        hvd = framework.hvd
        results = []
        for _ in range(3):  # a call that is known is looked up
            mine = framework.tensor(np.full(2, hvd.rank(), np.float32))
            results.append(framework.array(hvd.broadcast(mine, np.array(1), name="root in an array")).tolist())
            results.append(framework.array(hvd.allreduce(mine, op=np.array(hvd.Sum), name="op in an array")).tolist())
        return results

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(run, framework) == [[[1.0, 1.0]] * 6] * 2
