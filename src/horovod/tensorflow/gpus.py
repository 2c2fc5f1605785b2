# SPDX-License-Identifier: Apache-2.0
"""How the kernels find the stream of TensorFlow's GPUs (native/shims/tensorflow/gpu_stream.h)."""

from __future__ import annotations

import ctypes

import tensorflow as tf

from horovod.settings import Settings

__all__ = ["eigen_device", "exported", "may_stay"]

# OpKernelContext::eigen_device<Eigen::GpuDevice>() const, which TensorFlow exports for kernels of others. The shims
# check what it leads to before they use it.
_NAME = "_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen9GpuDeviceEEERKT_v"


def eigen_device() -> int | None:
    """The address of TensorFlow's function that tells a kernel its GPU.

    None if TensorFlow shall copy tensors of GPUs to host memory: HOROVOD_TENSORFLOW_GPU=host, or its GPUs are not
    CUDA's. Raises ImportError if they shall stay on the GPU, and this release of TensorFlow has no such function.
    """
    return None if Settings.from_environment().tensorflow_gpu == "host" else exported()


def may_stay() -> bool:
    """True if tensors would stay on the GPUs of this TensorFlow with HOROVOD_TENSORFLOW_GPU=device."""
    try:
        return exported() is not None
    except ImportError:
        return False


def exported() -> int | None:
    """That address; None if TensorFlow was built without CUDA: its GPUs, if it has any, are of other makers.

    Tests put the stand-in's function in its place.
    """
    if not tf.test.is_built_with_cuda():
        return None
    try:
        function = getattr(ctypes.CDLL("libtensorflow_framework.so.2"), _NAME)
    except AttributeError:
        raise ImportError(
            f"TensorFlow {tf.__version__} has no function that tells a kernel its GPU's stream\n"
            "hint: HOROVOD_TENSORFLOW_GPU=host takes the tensors through host memory"
        ) from None
    return ctypes.cast(function, ctypes.c_void_p).value
