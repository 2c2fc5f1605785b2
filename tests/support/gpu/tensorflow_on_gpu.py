# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's own runtime with the stand-in as its GPUs: see tests/native/standin_tensorflow."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.frameworks import TENSORFLOW_ENV, Array, TensorFlow
from support.gpu import standin_library as standin

SOURCES = standin.ROOT / "tests" / "native" / "standin_tensorflow"


def library_of(tensorflow: Any) -> Path:
    """The plugin's file for this release."""
    return standin.LIBRARY.with_name(f"libstandin_tensorflow-{tensorflow.__version__}.so")


def environment(way: str = "best", **more: str) -> dict[str, str]:
    """Of worlds whose ranks call with_gpus(). Builds the plugin if it is not there, or older than its sources."""
    named = standin.environment(way, HOROVOD_TENSORFLOW_GPU="device", **more)
    tensorflow = pytest.importorskip("tensorflow", reason="not run: tensorflow is not installed")
    folder = os.path.dirname(tensorflow.__file__)
    sources = [*SOURCES.iterdir(), *standin.SOURCES.iterdir()]
    with standin.building(library_of(tensorflow), sources) as made:
        if made is not None:
            words = [standin.COMPILER, "-std=c++20", "-O1", "-w", "-shared", "-fPIC"]
            words += [f"-I{path}" for path in (standin.ROOT / "native", standin.SOURCES, SOURCES)]
            words += ["-isystem", f"{folder}/include", str(SOURCES / "plugin.cc"), str(standin.LIBRARY)]
            words += ["-Wl,-rpath,$ORIGIN", f"-L{folder}", "-l:libtensorflow_framework.so.2", "-o", str(made)]
            subprocess.run(words, check=True)
    return {**TENSORFLOW_ENV, **named}


def with_gpus() -> None:
    """In a rank, before TensorFlow's runtime starts: its GPU:0 is one of the stand-in's, another one on each rank."""
    import tensorflow as tf
    from tensorflow.python.framework import load_library

    from horovod.tensorflow import gpus

    if tf.config.list_physical_devices("GPU"):
        return
    library = str(library_of(tf))
    load_library.load_pluggable_device_library(library)
    found = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(found[int(os.environ["HOROVOD_RANK"]) % len(found)], "GPU")
    finder = ctypes.CDLL(library).standin_eigen_device
    gpus.exported = lambda: ctypes.cast(finder, ctypes.c_void_p).value


def stream() -> int:
    """On which TensorFlow's GPU computes; known once a kernel of Horovod has run there."""
    import tensorflow as tf

    found = ctypes.CDLL(str(library_of(tf))).standin_tensorflow_stream
    found.restype = ctypes.c_void_p
    return int(found())


class TensorFlowOnGpu(TensorFlow):
    """TensorFlow's tensors on a GPU. TensorFlow gives operations the device of their kernels: GPU:0."""

    def __init__(self, mode: str = "eager") -> None:
        with_gpus()
        super().__init__(mode)

    def tensor(self, array: Array, layout: str = "dense") -> Any:
        with self._tf.device("GPU:0"):
            return self._tf.identity(super().tensor(array, layout))
