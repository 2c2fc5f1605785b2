# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients for MXNet: Compression.none, .fp16."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.core.compression import Compressor, NoneCompressor, casting

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def _is_floating(tensor: Any) -> bool:
    return tensor.dtype in (np.float32, np.float64)


def _cast(tensor: Any, dtype: Any) -> Any:
    return tensor.astype(dtype)


FP16Compressor = casting("FP16Compressor", _is_floating, _cast, np.float16)


class Compression:
    """The choices. Any class with compress and decompress as in Compressor will do as well."""

    none = NoneCompressor
    fp16 = FP16Compressor
