# SPDX-License-Identifier: Apache-2.0
"""`horovodrun --check-build`: what this installation can be used with, each thing tried, not looked up."""

from __future__ import annotations

import subprocess
import sys

import horovod
from horovod.core.communicators import Communicator, all_communicators
from horovod.core.gpus import nccl_version

__all__ = ["check_build"]

_IMPORT_TIMEOUT_S = 120


def check_build() -> str:
    rows, native = _communicators()
    built = {row.name for row in rows if row.available}
    sections = {
        "Available Frameworks": {
            "TensorFlow": _imports("horovod.tensorflow"),
            "PyTorch": _imports("horovod.torch"),
            "Keras": _imports("horovod.keras"),
            "JAX": _imports("horovod.jax"),
            "MXNet": _imports("horovod.mxnet"),
            "Caffe": _imports("horovod.caffe"),
        },
        # "Gloo" is what Horovod's users know own transports by; scripts read this list.
        "Available Controllers": {"MPI": "mpi" in built, "Gloo": native},
        "Available Transports": {f"{row.name} ({row.title})": row.available for row in rows},
        "Available Tensor Operations": {
            "NCCL": native and nccl_version() > 0,
            **{name.upper(): name in built for name in ("ddl", "ccl", "mpi")},
            "Gloo": native,
        },
    }
    lines = [f"Horovod v{horovod.__version__}:"]
    for title, entries in sections.items():
        lines += ["", f"{title}:", *(f"    [{'X' if there else ' '}] {name}" for name, there in entries.items())]
    return "\n".join(lines)


def _communicators() -> tuple[tuple[Communicator, ...], bool]:
    """The rows of the native core's registry, and whether that can be opened."""
    try:
        return all_communicators(), True
    except ImportError:
        return (), False


def _imports(module: str) -> bool:
    """In a process of its own: a framework that crashes or prints a lot does not harm horovodrun."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
