# SPDX-License-Identifier: Apache-2.0
"""torch's reduce operations as ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from horovod.core.collectives import Reduction
from horovod.core.native import Average, BitAnd, BitOr, BitXor, Max, Min, Product, Sum
from horovod.core.process_sets import ProcessSet
from horovod.core.reductions import as_key

__all__ = ["Reductions"]

_BITWISE = {ReduceOp.BAND: BitAnd, ReduceOp.BOR: BitOr, ReduceOp.BXOR: BitXor}
_OPS = {
    ReduceOp.SUM: Sum,
    ReduceOp.AVG: Average,
    ReduceOp.MIN: Min,
    ReduceOp.MAX: Max,
    ReduceOp.PRODUCT: Product,
    **_BITWISE,
}
# True counts as 1, and a result that is not 0 as True.
_OPS_OF_BOOLS = {
    ReduceOp.SUM: Max,
    ReduceOp.PRODUCT: Min,
    ReduceOp.MIN: Min,
    ReduceOp.MAX: Max,
    **_BITWISE,
}
_NAMES = {hash(op): name for name, op in ReduceOp.RedOpType.__members__.items()}


class Reductions:
    """How to reduce in one process set."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        # By hash, which is the operation's number: to compare torch's objects takes longer than an allreduce.
        self._numbers = {hash(op): self._how(ours) for op, ours in _OPS.items()}
        self.of_one = self._how(Sum)
        self._bools = {hash(op): self._how(ours) for op, ours in _OPS_OF_BOOLS.items()}

    def has(self, op: Any) -> bool:
        """True if the hash alone tells the operation. All factors of PREMUL_SUM have the same."""
        return hash(op) in self._numbers

    def of(self, op: Any, tensor: Tensor) -> Reduction:
        """Raises NotImplementedError for an operation that the core does not have."""
        found = (self._bools if tensor.dtype is torch.bool else self._numbers).get(hash(op))
        return self._other(op, tensor) if found is None else found

    def _how(self, op: int, scale: float = 1.0) -> Reduction:
        return as_key((op, None, scale, 1.0, self._process_set))

    def _other(self, op: Any, tensor: Tensor) -> Reduction:
        name = _NAMES.get(hash(op), str(op))
        if name == "PREMUL_SUM" and tensor.dtype is not torch.bool:
            factor = op.__getstate__()[1]
            return self._how(Sum, factor.item() if isinstance(factor, Tensor) else factor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        text = f"the backend hvd has no ReduceOp.{name} of {dtype} tensors"
        raise NotImplementedError(f"{text}\nhint: cast them to a floating-point type")
