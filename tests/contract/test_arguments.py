# SPDX-License-Identifier: Apache-2.0
"""The contract, arguments of a wrong type: the error names the argument, what was expected, and what it got."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract.test_errors import Wrong, check_that_the_others_are_told, ones, works_afterwards, wrong
from support.frameworks import loaded
from support.world import WorldPool

WORLDS = [(1, "auto"), (2, "shm"), (3, "tcp"), (4, "2+2")]
NO_SET = r"process_set: expected a ProcessSet, got \[0, 1\]\nhint: hvd.add_process_set\(\[0, 1\]\) makes one"
NO_COMPRESSOR = "compression=(None|3): expected a class with compress and decompress\nhint: hvd.Compression.none"


OPERATIONS = ["allreduce", "allgather", "reducescatter"]
OPERATIONS += [*(f"grouped_{operation}" for operation in OPERATIONS), "broadcast", "alltoall"]

# By name: calls that are wrong on one rank alone; of all operations, with a list of ranks in place of a process set.
WRONG: dict[str, Wrong] = {
    f"{operation} in a list": wrong(
        NO_SET, operation, [2], process_set=[0, 1], **({"root_rank": 0} if operation == "broadcast" else {})
    )
    for operation in OPERATIONS
} | {
    "list of ops": wrong(r"op=\[1\]: expected one of Average, Sum", "allreduce", [2], op=[1]),
    "list of roots": wrong(r"root_rank=\[0\]: expected the number of a rank", "broadcast", [2], root_rank=[0]),
    "one of a group": wrong("tensor 1 of 2: .*object", "grouped_allreduce", [2], lambda f: object(), kind=Exception),
    "['name']": (
        "allreduce",
        lambda hvd, f, _: hvd.allreduce(ones(f, 2), name=["name"]),
        TypeError,
        "name: expected a str, got list",
    ),
    "scale of nothing": wrong("postscale_factor=None: expected a number", "allreduce", [2], postscale_factor=None),
    "scale in words": wrong("postscale_factor='0.5': expected a number", "reducescatter", [2], postscale_factor="0.5"),
    "scale of several": wrong(
        "prescale_factor=.*1.*: expected a number", "allreduce", [2], prescale_factor=lambda hvd, f: ones(f, 2)
    ),
    "splits of nothing": wrong(
        "splits: expected an? [a-z.]+(Tensor|NDArray|Array).* got object|splits: dtype object|splits=<object object",
        "alltoall",
        [1],
        kind=Exception,
        splits=lambda hvd, f: object(),
    ),
    "compression": wrong(
        r"compression='fp16': expected a class with compress and decompress\nhint: hvd.Compression.fp16\b",
        "allreduce",
        [2],
        compression="fp16",
    ),
    "compression of a group": wrong(NO_COMPRESSOR, "grouped_allreduce", [2], compression=None),
    "scattered compression": wrong(NO_COMPRESSOR, "reducescatter", [2], compression=3),
    "scattered group": wrong(NO_COMPRESSOR, "grouped_reducescatter", [2], compression=3),
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
    def run(framework: Any, hvd: Any) -> str:
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

    peer, own = worlds(2).run(loaded(run), framework)
    assert own.endswith("there is no codebook") and "rank" not in own
    assert "rank 1" in peer and "there is no codebook" in peer, peer


def test_a_number_may_come_as_an_array_of_one(worlds: WorldPool, framework: str) -> None:
    """It has no hash either, and is no mistake."""

    def run(framework: Any, hvd: Any) -> list[list[float]]:
        results = []
        for _ in range(3):  # a call that is known is looked up
            mine = framework.tensor(np.full(2, hvd.rank(), np.float32))
            results.append(framework.array(hvd.broadcast(mine, np.array(1), name="root in an array")).tolist())
            results.append(framework.array(hvd.allreduce(mine, op=np.array(hvd.Sum), name="op in an array")).tolist())
        return results

    assert worlds(2, {"HOROVOD_TRANSPORT": "shm"}).run(loaded(run), framework) == [[[1.0, 1.0]] * 6] * 2
