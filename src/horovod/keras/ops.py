# SPDX-License-Identifier: Apache-2.0
"""Operations on values on the host: what NumPy takes, and tensors.

A tensor gives a tensor of the same framework, an array an array, and a scalar a scalar.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

from horovod.core.arrays import operations
from horovod.core.compression import Compressor
from horovod.core.native import Average
from horovod.keras.compression import Compression

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def _host(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)


def _given(value: Any, result: Any) -> Any:
    tf = sys.modules.get("tensorflow")  # whose tensors horovod.tensorflow.keras gets with any backend of Keras
    if tf is not None and tf.is_tensor(value):
        return tf.convert_to_tensor(result)
    if keras.ops.is_tensor(value):
        return keras.ops.convert_to_tensor(result)
    return result if np.ndim(result) else result[()]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """The reduction of a host value over all ranks: Average if neither `op` nor the old `average` says otherwise.

    `compression` is accepted; host values travel as they are.
    """
    operations.check_compression(compression, "allreduce", name)
    result = operations.allreduce(
        _host(value), average, name, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )
    return _given(value, result)


def allgather(value: Any, name: str | None = None) -> Any:
    """All ranks' values, concatenated along dimension 0."""
    return _given(value, operations.allgather(_host(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's host value."""
    return _given(value, operations.broadcast(_host(value), root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """This rank's rows of the allreduce of a value."""
    return _given(value, operations.reducescatter(_host(value), name, op=op))
