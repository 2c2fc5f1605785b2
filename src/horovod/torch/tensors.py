# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors as the core sees them: step 3 of a gradient's way.

Dense tensors are used in place, in host memory and on GPUs (torch/gpus.py). Views and lazily negated tensors are copied
first, and the result is written back; so are those of other devices, to host memory.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from horovod.core import calls, native
from horovod.core.direct import DirectCollectives
from horovod.core.exceptions import InvalidRequestError
from horovod.core.tensors import unsupported_dtype
from horovod.torch import gpus
from horovod.torch.gpus import TensorOnGpu

__all__ = ["TorchAdapter", "check_writable", "collectives", "has_overlap"]

Staged: TypeAlias = Any  # a Tensor, or a TensorOnGpu
_DTYPES = [getattr(torch, name) for name in native.DTYPE_NAMES]
_NUMBER_OF = {dtype: number for number, dtype in enumerate(_DTYPES)}
_COMPLEX = (torch.complex64, torch.complex128)


def has_overlap(tensor: Tensor) -> bool:
    """True if elements share memory, as in expand(): such a tensor can be read, not written."""
    return any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True))


def check_writable(tensor: Tensor) -> None:
    """Raises InvalidRequestError for a tensor that cannot take a result."""
    _check_layout(tensor)
    if not tensor.is_contiguous() and has_overlap(tensor):
        raise InvalidRequestError(
            "the result cannot be written into an expanded tensor, whose elements share memory\n"
            "hint: call .contiguous() first"
        )


class TorchAdapter:
    """See core/tensors.py."""

    find = staticmethod(calls.find)
    run_known = staticmethod(calls.run_known)

    def stage(self, tensor: Tensor) -> Staged:
        if _is_plain(tensor):
            return tensor
        if tensor.is_complex():
            # A view, but that a CPU's result goes into what is staged here.
            tensor = _pairs(tensor.clone() if tensor.is_cpu else tensor)
        if (gpu := gpus.gpu_of(tensor)) is not None:
            return gpus.on_gpu(tensor, gpu)
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        with torch.no_grad():
            host.copy_(tensor)
        return host

    def is_complex(self, tensor: Tensor) -> bool:
        return isinstance(tensor, Tensor) and tensor.is_complex()

    def dtype_of(self, staged: Staged) -> int:
        number = _NUMBER_OF.get(staged.dtype)
        if number is None:
            if isinstance(staged, TensorOnGpu):
                return self.dtype_of(staged.tensor)
            raise unsupported_dtype(staged.dtype)
        return number

    def stage_in_place(self, tensor: Tensor) -> Staged:
        if _is_plain(tensor):
            return tensor
        check_writable(tensor)
        return self.stage(tensor)

    def address(self, staged: Staged) -> int:
        return staged.data_ptr()  # type: ignore[no-any-return]

    def empty_like(self, staged: Tensor) -> Tensor:
        return torch.empty_like(staged, requires_grad=False)

    def empty(self, shape: tuple[int, ...], dtype: int) -> Tensor:
        return torch.empty(shape, dtype=_DTYPES[dtype], device="cpu")

    def write_back(self, tensor: Tensor, staged: Staged) -> None:
        result = self.deliver(staged, tensor)
        if result is not tensor and result.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(result)

    def deliver(self, staged: Staged, like: Tensor) -> Tensor:
        result = staged.delivered() if isinstance(staged, TensorOnGpu) else staged.to(like.device)
        return torch.view_as_complex(result) if like.is_complex() else result


def _is_plain(tensor: Tensor) -> bool:
    """True if it is dense host memory without any conversion. Raises for anything that cannot be made so."""
    try:
        # is_complex() takes three times as long as a look at the dtype.
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and tensor.dtype not in _COMPLEX:
            return True
    except (AttributeError, RuntimeError):
        _explain(tensor)
        raise
    _explain(tensor)
    return False


def _pairs(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones, with a last dimension of 2; a view if they are dense."""
    return torch.view_as_real(tensor.detach().resolve_conj().resolve_neg())


def _explain(tensor: Tensor) -> None:
    """Raises an error that says what is wrong with a tensor, if anything is."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in _NUMBER_OF and tensor.dtype not in _COMPLEX:
        raise unsupported_dtype(tensor.dtype)
    _check_layout(tensor)


def _check_layout(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise InvalidRequestError(
            f"layout {tensor.layout} is not supported: expected a dense tensor\nhint: call .to_dense() first; for COO "
            "there is sparse_allreduce_async, and DistributedOptimizer has sparse_as_dense=True"
        )


collectives: DirectCollectives[Tensor] = DirectCollectives(TorchAdapter())
