# SPDX-License-Identifier: Apache-2.0
"""Reductions inside of what XLA compiles (jit_compile=True), on the CPU; with HOROVOD_TENSORFLOW_GPU=device, on CUDA.

One custom call reduces all tensors of a step (native/shims/tensorflow/xla.cc). Shapes must be static, and nothing
overlaps with the backward pass. Several calls of one function run in the order in which they were traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.core.native import DTYPE_NAMES, Sum
from horovod.tensorflow import gpus
from horovod.tensorflow.shim import library

__all__ = ["calls", "is_compiling", "problem", "reduced", "refuse"]

_LAST = "_hvd_last_xla_results"  # an attribute of a graph


def problem() -> str | None:
    """Why compiled steps cannot hold reductions, with a hint. None if they can."""
    if not library().hvd_tensorflow_xla_available():
        return f"XLA of TensorFlow {tf.__version__} has no custom calls that Horovod knows\nhint: jit_compile=False"
    if not tf.config.get_visible_devices("GPU") or gpus.eigen_device() is not None:
        return None
    if gpus.may_stay():  # XLA does not copy tensors to host memory, as TensorFlow does for its own kernels
        return (
            "XLA can hold an allreduce on a GPU only with HOROVOD_TENSORFLOW_GPU=device\n"
            "hint: set it (not yet run on a GPU), or use jit_compile=False"
        )
    return "XLA can hold an allreduce only on the CPU and on GPUs with CUDA\nhint: jit_compile=False"


def is_compiling() -> bool:
    """True if XLA will compile the function that is being traced."""
    if tf.executing_eagerly():
        return False
    from tensorflow.python.ops import control_flow_util  # the public interface does not tell

    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def calls() -> int:
    """How often compiled steps of this process have reduced."""
    return int(library().hvd_tensorflow_xla_calls())


def refuse(what: str) -> None:
    """Raises if `what` is traced for XLA, which has no such operation."""
    if is_compiling():
        raise NotImplementedError(
            f"{what} cannot be part of a step that XLA compiles\n"
            "hint: jit_compile=False; of Horovod's operations only dense allreduces can be compiled"
        )


def reduced(
    tensors: Sequence[Any], name: str, attributes: dict[str, Any], gradient: Callable[[Sequence[Any]], list[Any]]
) -> list[Any]:
    """allreduce of `tensors` as a whole. `attributes`: as of the nodes that TensorFlow runs itself.

    gradient: makes the gradients of `tensors` from those of the results.
    """
    from tensorflow.compiler.tf2xla.python import xla

    found = problem()
    if found is not None:
        raise NotImplementedError(found)
    metas = []
    for tensor in tensors:
        if not tensor.shape.is_fully_defined():
            raise ValueError(f"{name}: XLA needs static shapes, got {tensor.shape}\nhint: jit_compile=False")
        metas.append((DTYPE_NAMES.index(tensor.dtype.name), tuple(tensor.shape)))
    # All of the request, so that a saved function can be loaded in any process.
    numbers = [attributes.get("reduce_op", Sum), *(attributes[key] for key in ("process_set", "prescale", "postscale"))]
    numbers += [len(metas), *(number for dtype, shape in metas for number in (dtype, len(shape), *shape))]
    request = " ".join(map(str, numbers))

    @tf.custom_gradient
    def call(*tensors: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        # XLA orders calls by their data only, and all ranks need one order. The call before is not an argument of this
        # function: gradients end here.
        before = getattr(graph, _LAST, [])
        results = xla.custom_call_v2(
            "horovod_grouped_allreduce",
            [*tensors, *before],
            [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors],
            backend_config=f"{len(before)} {request} {name}",
            has_side_effect=True,
        )
        setattr(graph, _LAST, results[:1])
        return list(results), lambda *gradients: gradient(gradients)

    return list(call(*tensors))
