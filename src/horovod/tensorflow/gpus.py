# SPDX-License-Identifier: Apache-2.0
"""How the kernels find the stream of TensorFlow's GPUs (native/shims/tensorflow/gpu_stream.h)."""

from __future__ import annotations

import ctypes

import tensorflow as tf

from horovod.core.settings import Settings

__all__ = ["eigen_device", "exported"]

# OpKernelContext::eigen_device<Eigen::GpuDevice>() const, which TensorFlow exports for kernels of others. The shims
# check what it leads to before they use it.
_NAME = "_ZNK10tensorflow15OpKernelContext12eigen_deviceIN5Eigen9GpuDeviceEEERKT_v"


def eigen_device() -> int | None:
    """The address of TensorFlow's function that tells a kernel its GPU.

    None if TensorFlow shall copy tensors of GPUs to host memory (HOROVOD_TENSORFLOW_GPU=host). Raises ImportError if
    they shall stay on the GPU, and this release of TensorFlow has no such function.
    """
    return None if Settings.from_environment().tensorflow_gpu == "host" else exported()


def exported() -> int | None:
    """That address. Tests put the stand-in's function in its place."""
    try:
        function = getattr(ctypes.CDLL("libtensorflow_framework.so.2"), _NAME)
    except AttributeError:
        raise ImportError(
            f"TensorFlow {tf.__version__} has no function that tells a kernel its GPU's stream\n"
            "hint: HOROVOD_TENSORFLOW_GPU=host takes the tensors through host memory"
        ) from None
    return ctypes.cast(function, ctypes.c_void_p).value
