# SPDX-License-Identifier: Apache-2.0
"""The reduction of sparse (COO) tensors, as embeddings have for gradients: one allgather of the
indices and the values. The sum over the ranks is what coalescing the result gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from horovod.core.native import OP_NAMES, Average, Sum
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch.tensors import collectives

__all__ = ["sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Starts the Sum or Average of a sparse tensor over all ranks, which may have different numbers of non-zeros.
    Returns a function that waits and gives the result, which is not coalesced. Raises ValueError for any other op."""
    try:
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
            seen = tensor.layout if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"expected a sparse COO tensor, seen {seen}")
        if op not in (Average, Sum):
            known = isinstance(op, int) and 0 <= op < len(OP_NAMES)
            raise ValueError(f"a sparse tensor has Average and Sum, seen op={OP_NAMES[op] if known else repr(op)}")
    except (TypeError, ValueError) as error:
        collectives.refuse("grouped_allgather", name, error, process_set)
    # Indices by row: that dimension is what an allgather joins.
    parts = [tensor._indices().t().contiguous(), tensor._values()]
    operation = collectives.grouped_allgather(parts, name, process_set)
    shape = tensor.shape

    def wait() -> Tensor:
        all_indices, all_values = operation.wait()
        if op == Average:
            exact = all_values.is_floating_point() or all_values.is_complex()
            all_values = torch.div(all_values, process_set.size(), rounding_mode=None if exact else "trunc")
        return torch.sparse_coo_tensor(all_indices.t(), all_values, shape)

    return wait
