# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients and of allreduce for PyTorch: Compression.none, .fp16, .bf16."""

from __future__ import annotations

from typing import Any

import torch

from horovod.core.compression import Compressor, NoneCompressor, casting

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def _is_floating(tensor: torch.Tensor) -> bool:
    return bool(tensor.dtype.is_floating_point)


def _cast(tensor: torch.Tensor, dtype: Any) -> torch.Tensor:
    return tensor.to(dtype)


FP16Compressor = casting("FP16Compressor", _is_floating, _cast, torch.float16)
BF16Compressor = casting("BF16Compressor", _is_floating, _cast, torch.bfloat16)


class Compression:
    """The choices. Any class with compress and decompress as in Compressor will do as well."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
