# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients for Keras: Compression.none, .fp16, .bf16."""

from __future__ import annotations

from typing import Any

import keras

from horovod.core.compression import NoneCompressor, casting

__all__ = ["Compression"]


def _is_floating(tensor: Any) -> bool:
    return "float" in keras.backend.standardize_dtype(tensor.dtype)


def _cast(tensor: Any, dtype: Any) -> Any:
    return keras.ops.cast(tensor, keras.backend.standardize_dtype(dtype))


class Compression:
    """The forms in which gradients are sent. Any class with compress and decompress as in Compressor works, too."""

    none = NoneCompressor
    fp16 = casting("FP16Compressor", _is_floating, _cast, "float16")
    bf16 = casting("BF16Compressor", _is_floating, _cast, "bfloat16")
