# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients and of allreduce for JAX: Compression.none, .fp16, .bf16."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from horovod.core.compression import Compressor, NoneCompressor, casting

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def _is_floating(tensor: Any) -> bool:
    return hasattr(tensor, "dtype") and bool(jnp.issubdtype(tensor.dtype, jnp.floating))


def _cast(tensor: Any, dtype: Any) -> Any:
    return tensor.astype(dtype)


FP16Compressor = casting("FP16Compressor", _is_floating, _cast, jnp.dtype("float16"))
BF16Compressor = casting("BF16Compressor", _is_floating, _cast, jnp.dtype("bfloat16"))


class Compression:
    """The choices. Any class with compress and decompress as in Compressor will do as well."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
