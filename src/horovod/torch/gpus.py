# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors as the core sees them (step 3 of a gradient's way): their GPU, its current stream, their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from horovod.core.exceptions import InvalidRequestError
from horovod.core.gpus import Gpu, OnGpu

__all__ = ["TensorOnGpu", "TorchGpu", "gpu_of_cuda_tensor", "on_gpu"]


class TorchGpu(Gpu, Protocol):
    """A GPU, with the parts that only PyTorch's tensors need."""

    def use_on_current_stream(self, tensor: Tensor) -> None:
        """The tensor's memory is not used again before what the current stream does with it until it is dropped."""
        ...


# As torch.cuda.current_stream(device).cuda_stream, in a tenth of the time.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Cuda:
    """A GPU under PyTorch."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def current_stream(self) -> int:
        if _raw_stream is not None:
            return int(_raw_stream(self.ordinal))
        return int(torch.cuda.current_stream(self.ordinal).cuda_stream)

    def use_on_current_stream(self, tensor: Tensor) -> None:
        tensor.record_stream(torch.cuda.current_stream(self.ordinal))


_known: dict[int, Cuda] = {}


def gpu_of_cuda_tensor(tensor: Tensor) -> TorchGpu | None:
    """The GPU whose memory a tensor lies in; None for memory that the core does not know.

    Raises InvalidRequestError while a CUDA graph is captured.
    """
    if not tensor.is_cuda or torch.version.hip is not None:
        return None
    if torch.cuda.is_current_stream_capturing():
        raise InvalidRequestError(
            "an operation cannot be captured into a CUDA graph: the ranks agree on it when it is called\n"
            "hint: call it outside of torch.cuda.graph()"
        )
    index = tensor.get_device()
    return _known.get(index) or _known.setdefault(index, Cuda(index))


class TensorOnGpu(OnGpu):
    """A tensor of PyTorch's that the core reads and writes."""

    __slots__ = ("staged_on", "tensor")
    gpu: TorchGpu

    def __init__(self, tensor: Tensor, gpu: TorchGpu, is_private: bool) -> None:
        self.tensor = tensor
        self.gpu = gpu
        self.dtype = (tensor.dtype, gpu.ordinal)
        self.shape = tensor.shape
        self.is_private = is_private
        self.staged_on = gpu.current_stream()

    def data_ptr(self) -> int:
        """As of a tensor."""
        return self.tensor.data_ptr()  # type: ignore[no-any-return]

    def empty(self, shape: Sequence[int]) -> TensorOnGpu:
        with torch.no_grad():
            return TensorOnGpu(self.tensor.new_empty(tuple(shape)), self.gpu, True)

    def on_host(self) -> Tensor:
        return self.tensor.detach().cpu()

    def delivered(self) -> Tensor:
        """The tensor itself, for work of the current stream, which need not be the one it was allocated on."""
        if self.gpu.current_stream() != self.staged_on:
            self.gpu.use_on_current_stream(self.tensor)
        return self.tensor


def on_gpu(tensor: Tensor, gpu: TorchGpu) -> TensorOnGpu:
    """The tensor as the core takes it: itself, or a copy on the same GPU if its layout is another one."""
    if tensor.is_contiguous() and not tensor.is_neg():
        return TensorOnGpu(tensor, gpu, False)
    return TensorOnGpu(tensor.detach().resolve_neg().contiguous(), gpu, True)


# Where a tensor lies; tests put GPUs here that this machine does not have.
gpu_of: Callable[[Any], TorchGpu | None] = gpu_of_cuda_tensor
