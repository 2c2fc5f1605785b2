# SPDX-License-Identifier: Apache-2.0
"""The native kernels for TensorFlow (native/shims/tensorflow): opened once, and told which generation runs.

The kernels submit to the engine from TensorFlow's threads, without Python. The same library file serves every release:
it needs none of TensorFlow's headers and looks its C functions up when it is opened.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import tensorflow as tf

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.context import Context
from horovod.core.telemetry.arrivals import note_framework_waits
from horovod.tensorflow import gpus
from horovod.tensorflow.patches import keep_order

__all__ = ["follow_init", "library", "library_path", "operations"]


def library_path() -> str:
    """The library of the kernels, beside the native core's."""
    return str(native.library_path().with_name("libhorovod_tensorflow.so"))


@functools.cache
def register() -> Any:
    """Makes the operations known to TensorFlow, so that it can read graphs that hold them. Returns their module.

    Raises ImportError if the library cannot be opened.
    """
    native.library()  # which the kernels call
    path = library_path()
    try:
        return tf.load_op_library(path)  # registers: it must be the first to open the library
    except (tf.errors.NotFoundError, OSError) as error:
        raise ImportError(f"Horovod's kernels for TensorFlow cannot be opened: {error}\nhint: install again") from error


@functools.cache
def operations() -> Any:
    """The module of the operations as functions. Raises ImportError if the library does not fit this TensorFlow."""
    module = register()
    _opened().hvd_tensorflow_take_gpus(gpus.eigen_device(), int(gpus.may_stay()))
    why = _opened().hvd_tensorflow_error().decode()
    if why:
        raise ImportError(f"Horovod's kernels do not fit TensorFlow {tf.__version__}: {why}")
    _opened().hvd_tensorflow_xla_available()  # registers XLA's part, which saved functions may hold
    keep_order()
    note_framework_waits()
    return module


@functools.cache
def follow_init() -> None:
    """From now on the kernels know the generation that runs, whatever is built or loaded later.

    Raises ImportError as register() does.
    """
    register()
    contexts.watch(_attach)


def library() -> ctypes.CDLL:
    """The library of the kernels, for the functions it exports."""
    operations()
    return _opened()


@functools.cache
def _opened() -> ctypes.CDLL:
    opened = ctypes.CDLL(library_path())
    opened.hvd_tensorflow_error.restype = ctypes.c_char_p
    opened.hvd_tensorflow_take_gpus.argtypes = [ctypes.c_void_p, ctypes.c_int]
    opened.hvd_tensorflow_take_gpus.restype = None
    opened.hvd_tensorflow_attach.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    opened.hvd_tensorflow_attach.restype = None
    opened.hvd_tensorflow_xla_calls.restype = ctypes.c_int64
    return opened


def _attach(context: Context | None) -> None:
    if context is None:
        _opened().hvd_tensorflow_attach(None, 0, 0)
        return
    try:
        operations()
    except ImportError:
        return  # the first operation raises it again
    # Kernels of XLA go on after the launch, so a commit has to wait for the GPU.
    context.uses_gpus = context.uses_gpus or gpus.eigen_device() is not None
    here = context.world.identity
    _opened().hvd_tensorflow_attach(context.pointer, here.local_rank, here.local_size)
