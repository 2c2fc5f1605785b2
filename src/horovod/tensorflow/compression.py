# SPDX-License-Identifier: Apache-2.0
"""Compression of gradients and of allreduce for TensorFlow: Compression.none, .fp16, .bf16."""

from __future__ import annotations

import tensorflow as tf

from horovod.core.compression import Compressor, NoneCompressor, casting

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


def _is_floating(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating)


FP16Compressor = casting("FP16Compressor", _is_floating, tf.cast, tf.float16)
BF16Compressor = casting("BF16Compressor", _is_floating, tf.cast, tf.bfloat16)


class Compression:
    """The choices. Any class with compress and decompress as in Compressor will do as well."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
