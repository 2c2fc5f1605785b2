# SPDX-License-Identifier: Apache-2.0
"""The gradients of PyTorch's parameters: how they are read, written and sent (step 2 of a gradient's way)."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from horovod.core.native import Average, Sum
from horovod.gradients.options import ReductionOptions
from horovod.gradients.reducer import Waitable
from horovod.gradients.step_check import sampled
from horovod.torch.sparse import SparseReduction
from horovod.torch.tensors import collectives, has_overlap

__all__ = ["ParameterGradients", "sample_of"]

_WORDS: dict[int, Any] = {2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def _begins_with_negative_zero(tensor: Tensor) -> bool:
    word = _WORDS.get(tensor.itemsize)
    if word is None:
        return True  # slower to learn
    return bool(word.from_address(tensor.data_ptr()).value == 1 << (8 * tensor.itemsize - 1))


def sample_of(tensor: Tensor) -> Any:
    """A few elements, as an array."""
    chosen = sampled(tensor.detach().reshape(-1)).resolve_conj()
    return (torch.view_as_real(chosen) if chosen.is_complex() else chosen).float().cpu().numpy().copy()


def _elements(gradient: Tensor) -> Tensor:
    """All of a dense tensor, those of a sparse one that are there."""
    return gradient if gradient.layout is torch.strided else gradient._values()


class ParameterGradients:
    """Gradients of PyTorch parameters, as gradients/reducer.py asks for them.

    If a parameter has no gradient now but its last one was sparse, it contributes an empty sparse tensor, as its peers
    expect.
    """

    def __init__(self, options: ReductionOptions) -> None:
        self._sparse_as_dense = options.sparse_as_dense
        self._how = options.how
        self._op = options.op
        self._is_sum = options.op in (Average, Sum)
        self._process_set = options.process_set
        self._sparse_dims: dict[Tensor, int] = {}  # of parameters whose last gradient was sparse

    def wanted(self, parameter: Tensor) -> bool:
        return bool(parameter.requires_grad)

    def current(self, parameter: Tensor) -> object | None:
        gradient: object | None = parameter.grad
        return gradient

    def version(self, parameter: Tensor) -> int:
        gradient = parameter.grad
        # torch counts no changes of a tensor that was made in inference mode
        return 0 if gradient is None or gradient.is_inference() else gradient._version

    def dense(self, parameter: Tensor) -> Tensor:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            if self._sparse_as_dense:
                return gradient.to_dense()
            if gradient.layout is torch.sparse_coo:
                self._sparse_dims[parameter] = gradient.sparse_dim()
            return gradient
        self._sparse_dims.pop(parameter, None)
        if has_overlap(gradient):
            # sum().backward() gives an expanded gradient; the result needs separate memory.
            gradient = parameter.grad = gradient.contiguous()
        return gradient

    def zeros(self, parameter: Tensor) -> Tensor:
        dims = self._sparse_dims.get(parameter)
        if dims is None:
            return torch.zeros_like(parameter, requires_grad=False)
        indices = torch.empty(dims, 0, dtype=torch.int64, device=parameter.device)
        values = parameter.detach().new_empty(0, *parameter.shape[dims:])
        return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=True)

    def nothing(self, parameter: Tensor) -> Tensor:
        zeros = self.zeros(parameter)
        # The sum of a GPU is not looked at, as the host would have to wait for it: zeros count as a gradient there.
        if self._is_sum and zeros.is_cpu and zeros.layout is torch.strided:
            zeros.fill_(-0.0)
        return zeros

    def is_nothing(self, reduced: Tensor) -> bool:
        if not self._is_sum or not reduced.is_cpu:
            return False
        if reduced.layout is not torch.strided:
            return bool(reduced._nnz() == 0)
        # Almost always the first element shows that there is something.
        if not reduced.is_floating_point() or not reduced.numel() or not _begins_with_negative_zero(reduced):
            return False
        return bool(torch.signbit(reduced).all()) and not bool(reduced.any())

    def clear(self, parameter: Tensor) -> None:
        parameter.grad = None

    def store(self, parameter: Tensor, reduced: Tensor) -> None:
        current = parameter.grad
        if reduced.layout is not torch.strided:
            parameter.grad = reduced.coalesce()  # as clipping and most optimizers need it
        elif current is None or current.layout is torch.strided:
            if current is not reduced:
                parameter.grad = reduced
        else:
            parameter.grad = reduced.to_sparse(current.sparse_dim())

    def add(self, parameter: Tensor, reduced: Tensor) -> None:
        current = parameter.grad
        if current is not None:
            with torch.no_grad():
                if current.layout is not torch.strided and reduced.layout is torch.strided:
                    reduced = reduced.to_sparse(current.sparse_dim())
                reduced = current.add_(reduced)
        self.store(parameter, reduced)

    def any(self, reduced: Tensor) -> object:
        found = _elements(reduced).any()
        return bool(found) if found.is_cpu else found  # the GPU is waited for only if the caller needs the truth

    def sample(self, gradient: Tensor) -> Any:
        if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        return sample_of(_elements(gradient))

    def is_finite(self, gradient: Tensor) -> bool:
        if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
            return True
        return bool(_elements(gradient).isfinite().all())

    def start(self, gradient: Tensor, name: str) -> Waitable:
        """Starts the reduction of a gradient, in place if it is dense."""
        if gradient.layout is torch.strided:
            return collectives.allreduce(gradient, name, self._how, True)
        if gradient.layout is not torch.sparse_coo:
            text = (
                f"a gradient with layout {gradient.layout} is not supported yet\n"
                "hint: pass sparse_as_dense=True to DistributedOptimizer"
            )
            collectives.refuse("allreduce", name, NotImplementedError(text), self._process_set)
        # Under the name of an allreduce, so that a peer whose gradient is dense does not wait for another one.
        return SparseReduction(gradient, name, self._op, self._process_set, "allreduce")

    def tell(self, name: str, error: Exception) -> None:
        """Tells the other ranks that this one's gradient of that name will not come."""
        collectives.tell("allreduce", name, error, self._process_set)
