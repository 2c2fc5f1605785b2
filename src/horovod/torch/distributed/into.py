# SPDX-License-Identifier: Apache-2.0
"""Operations whose result goes into memory that the caller gives. The one place that knows how."""

from __future__ import annotations

import torch
from torch import Tensor

from horovod.core.collectives import Reduction
from horovod.core.operations import Operation
from horovod.core.process_sets import ProcessSet
from horovod.torch.tensors import collectives

__all__ = ["allgather_into", "alltoall_into", "reducescatter_into"]


def allgather_into(
    tensor: Tensor, output: Tensor, name: str | None, process_set: ProcessSet | None, flags: int, even: bool = True
) -> Operation:
    """Starts the allgather of flat tensors; `even`: they are equally long."""
    return _into(output, collectives.allgather(tensor, name, process_set, flags))


def reducescatter_into(tensor: Tensor, output: Tensor, name: str | None, how: Reduction, flags: int) -> Operation:
    """Starts the reducescatter of a tensor with a row for each rank; `output` is the flat memory of this rank's row."""
    return _into(output, collectives.reducescatter(tensor, name, how, flags))


def alltoall_into(
    tensor: Tensor,
    output: Tensor,
    splits: list[int],
    output_splits: list[int],
    name: str | None,
    process_set: ProcessSet | None,
    flags: int,
) -> Operation:
    """Starts the alltoall of flat tensors; `output_splits`: how many elements come from each rank."""
    operation = collectives.alltoall(tensor, splits, name, process_set, flags)
    collect = operation.collect
    assert collect is not None

    def checked(done: Operation) -> Tensor:
        result, received = collect(done)
        if received.tolist() != output_splits:
            raise ValueError(
                f"the ranks have sent {received.tolist()} elements, but there is room for {output_splits}\n"
                "hint: each rank's input splits are the output splits of the others"
            )
        return result

    operation.collect = checked
    return _into(output, operation)


def _into(output: Tensor, operation: Operation) -> Operation:
    collect = operation.collect
    assert collect is not None

    def copied(done: Operation) -> Tensor:
        with torch.no_grad():
            return output.copy_(collect(done).view(output.shape))

    operation.collect = copied
    return operation
