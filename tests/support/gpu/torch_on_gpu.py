# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors on the stand-in's GPUs, as the contract sees a framework."""

from __future__ import annotations

from typing import Any

from support.frameworks import Array, Torch
from support.gpu import standin

__all__ = ["TorchOnGpu"]


class TorchOnGpu(Torch):
    """As PyTorch, with every tensor on the GPU of its rank."""

    def __init__(self) -> None:
        super().__init__()
        standin.with_gpus()

    def tensor(self, array: Array, layout: str = "dense") -> Any:
        return standin.to_gpu(super().tensor(array, layout))

    def array(self, tensor: Any) -> Array:
        assert not tensor.requires_grad
        return super().array(tensor.cpu())

    def unsupported(self) -> Any:
        return standin.to_gpu(super().unsupported())
