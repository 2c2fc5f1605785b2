# SPDX-License-Identifier: Apache-2.0
"""Lists of variables, such as a model's, made equal on all ranks: their values as arrays, of any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod.core.arrays import collectives
from horovod.core.exceptions import MismatchError
from horovod.core.objects import allgather_object, broadcast_object
from horovod.core.operations import run_all
from horovod.core.process_sets import global_process_set
from horovod.core.wording import counted

__all__ = ["broadcast_arrays"]

Array = np.ndarray[Any, Any]


def broadcast_arrays(arrays: Sequence[Array], root_rank: int, name: str) -> list[Array]:
    """The root's arrays, on every rank. `name`: under which the ranks meet.

    Raises MismatchError if the ranks' arrays differ in number, shape or dtype.
    """
    _check_alike([(tuple(array.shape), str(array.dtype)) for array in arrays], name)
    received = [np.array(array, order="C") for array in arrays]
    strings = [index for index, array in enumerate(received) if array.dtype.hasobject]
    others = [index for index in range(len(received)) if index not in set(strings)]

    def start(index: int) -> Any:
        # As bytes: their meaning does not matter here.
        data = received[index].reshape(-1).view(np.uint8)
        return collectives.broadcast(data, root_rank, f"{name}.{index}", global_process_set, True)

    run_all(start, others)
    if strings:
        values = broadcast_object([received[index] for index in strings], root_rank, f"{name}.strings")
        for index, value in zip(strings, values, strict=True):
            received[index] = value
    return received


def _check_alike(described: list[tuple[tuple[int, ...], str]], name: str) -> None:
    all_described = allgather_object(described, f"{name}.shapes")
    for rank, theirs in enumerate(all_described):
        if theirs != all_described[0]:
            seen = next((pair for pair in zip(all_described[0], theirs, strict=False) if pair[0] != pair[1]), None)
            difference = (
                f"{len(all_described[0])} and {counted(len(theirs), 'variable')}"
                if seen is None
                else f"{seen[0]}, {seen[1]}"
            )
            raise MismatchError(
                f"broadcast of variables: rank 0 and rank {rank} differ: {difference}\n"
                "hint: build the same model and optimizer on all ranks"
            )
