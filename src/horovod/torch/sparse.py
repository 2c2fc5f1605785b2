# SPDX-License-Identifier: Apache-2.0
"""The reduction of sparse (COO) tensors (steps 1 and 3 of a gradient's way).

Embeddings have such gradients. It is one allgather of the indices and the values; coalescing the result gives the sum
over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from horovod.core import context as contexts
from horovod.core.native import OP_NAMES, Adasum, Average, Sum
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.torch.tensors import collectives

__all__ = ["SparseReduction", "sparse_allreduce_async"]


class SparseReduction:
    """The Sum or Average of a sparse tensor over all ranks, which may have different numbers of non-zeros.

    Starts when it is made: `operation`. `label` as in Collectives.grouped_allgather. Raises
    NotImplementedError for Adasum, ValueError for any other op.
    """

    def __init__(
        self, tensor: Tensor, name: str | None, op: int, process_set: ProcessSet, label: str = "grouped_allgather"
    ) -> None:
        try:
            if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
                seen = tensor.layout if isinstance(tensor, Tensor) else type(tensor).__name__
                raise TypeError(f"expected a sparse COO tensor, got {seen}")
            if op == Adasum:
                raise NotImplementedError("sparse tensors: expected op Average or Sum, got op=Adasum")
            if op not in (Average, Sum):
                known = isinstance(op, int) and 0 <= op < len(OP_NAMES)
                raise ValueError(
                    f"sparse tensors: expected op Average or Sum, got op={OP_NAMES[op] if known else repr(op)}"
                )
        except (TypeError, ValueError, NotImplementedError) as error:
            collectives.refuse(label, name, error, process_set)
        contexts.note_gradients()
        # Indices by row: that dimension is what an allgather joins.
        parts = [tensor._indices().t().contiguous(), tensor._values()]
        self.operation = collectives.grouped_allgather(parts, name, process_set, label=label)
        self._shape = tensor.shape
        self._divisor = (process_set.size() or 1) if op == Average else 1

    def wait(self) -> Tensor:
        """Blocks until it is done; the result is not coalesced."""
        return self.result_of(self.operation.wait())

    def result_of(self, parts: tuple[Tensor, Tensor]) -> Tensor:
        """Makes the result of what the operation has gathered."""
        indices, values = parts
        if self._divisor != 1:
            exact = values.is_floating_point() or values.is_complex()
            values = torch.div(values, self._divisor, rounding_mode=None if exact else "trunc")
        # Checked: a peer's indices may be those of a larger tensor.
        return torch.sparse_coo_tensor(indices.t(), values, self._shape, check_invariants=True)


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Starts the Sum or Average of a sparse tensor over all ranks, which may have different numbers of non-zeros.

    Returns a function that waits and gives the result, which is not coalesced. Raises
    NotImplementedError for Adasum, ValueError for any other op.
    """
    return SparseReduction(tensor, name, op, process_set).wait
