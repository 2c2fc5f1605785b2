# SPDX-License-Identifier: Apache-2.0
"""Gradients in a list, for each backend of Keras 3 (steps 1 and 2 of a gradient's way).

TensorFlow: horovod.tensorflow's nodes. PyTorch: all reductions are in flight at once. JAX: one call out of the compiled
step for all gradients, since what a compiled step calls one by one may run in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from horovod.core import arrays
from horovod.core.compression import NoneCompressor, casting
from horovod.core.exceptions import InvalidRequestError
from horovod.core.gradient_list import GradientList
from horovod.core.native import SYNC
from horovod.core.reduction_options import ReductionOptions

__all__ = ["Compression", "backend_gradients"]


def _is_floating(tensor: Any) -> bool:
    return "float" in keras.backend.standardize_dtype(tensor.dtype)


def _cast(tensor: Any, dtype: Any) -> Any:
    return keras.ops.cast(tensor, keras.backend.standardize_dtype(dtype))


class Compression:
    """What gradients travel as. Any class with compress and decompress as in Compressor will do as well."""

    none = NoneCompressor
    fp16 = casting("FP16Compressor", _is_floating, _cast, "float16")
    bf16 = casting("BF16Compressor", _is_floating, _cast, "bfloat16")


class _DenseGradients(GradientList):
    """For backends whose gradients are dense, or are made so."""

    def key_of(self, variable: Any) -> Any:
        return id(variable)

    def is_sparse(self, gradient: Any) -> bool:
        return False

    def reduce_sparse(self, gradient: Any, name: str) -> Any:
        raise NotImplementedError  # there are none


class TorchGradients(_DenseGradients):
    """See core/gradient_list.py."""

    def to_dense(self, gradient: Any) -> Any:
        return gradient.to_dense() if gradient.is_sparse else gradient

    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        import horovod.torch as hvd

        prescale, postscale = self.options.factors
        handles = [
            hvd.grouped_allreduce_async(
                [tensors[position].detach() for position in group],
                name=f"{name}.{group[0]}",
                op=self.options.op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set=self.options.process_set,
            )
            for group in grouped
        ]
        received = list(tensors)
        for group, handle in zip(grouped, handles, strict=True):
            for position, tensor in zip(group, hvd.synchronize(handle), strict=True):
                received[position] = tensor
        return received


class JaxGradients(_DenseGradients):
    """See core/gradient_list.py."""

    def to_dense(self, gradient: Any) -> Any:
        return gradient.todense() if hasattr(gradient, "todense") else gradient

    def reduce_dense(self, tensors: list[Any], grouped: list[list[int]], name: str) -> Sequence[Any]:
        import jax

        how = self.options.how

        def reduce(*values: Any) -> tuple[Any, ...]:
            given = [np.array(value) for value in values]
            return tuple(arrays.collectives.grouped_allreduce(given, name, how, False, SYNC).wait())

        shapes = tuple(jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in tensors)
        return list(jax.experimental.io_callback(reduce, shapes, *tensors, ordered=True))


def backend_gradients(options: ReductionOptions, name: str) -> GradientList:
    """The gradients of the running backend. `name`: as of GradientList."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from horovod.tensorflow.gradient_list import TensorFlowGradients

        return TensorFlowGradients(options, name)
    if backend == "torch":
        return TorchGradients(options, name)
    if backend == "jax":
        return JaxGradients(options, name)
    raise InvalidRequestError(f"Keras backend {backend} is not supported: expected tensorflow, torch or jax")
