# SPDX-License-Identifier: Apache-2.0
"""`horovodrun --check-build`: what this installation can be used with, each thing tried, not looked up."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import horovod
from horovod.core.communicators import Communicator, all_communicators
from horovod.core.gpus import why_no_nccl
from horovod.core.settings import current_environment
from horovod.launcher.placement.base import import_command

__all__ = ["check_build"]

_IMPORT_TIMEOUT_S = 120
_FRAMEWORKS = {
    "TensorFlow": "horovod.tensorflow",
    "PyTorch": "horovod.torch",
    "Keras": "horovod.keras",
    "JAX": "horovod.jax",
    "MXNet": "horovod.mxnet",
    "Caffe": "horovod.caffe",
}
_KERAS_BACKENDS = ("tensorflow", "jax", "torch")


def check_build() -> str:
    rows, native = _communicators()
    built = {row.name for row in rows if row.available}
    without_nccl = why_no_nccl() if native else ""
    sections = {
        "Available Frameworks": _frameworks(),
        # "Gloo" is what Horovod's users know own transports by; scripts read this list.
        "Available Controllers": {"MPI": "mpi" in built, "Gloo": native},
        "Available Transports": {f"{row.name} ({row.title})": row.available for row in rows},
        "Available Tensor Operations": {
            "NCCL": native and not without_nccl,
            **{name.upper(): name in built for name in ("ddl", "ccl", "mpi")},
            "Gloo": native,
        },
    }
    reasons = [f"{row.name}: {row.why}" for row in rows if not row.available]
    if without_nccl:
        reasons.append(without_nccl)
    lines = [f"Horovod v{horovod.__version__}:"]
    for title, entries in sections.items():
        lines += ["", f"{title}:", *(f"    [{'X' if there else ' '}] {name}" for name, there in entries.items())]
    if reasons:
        lines += ["", "Why not:", *(f"    {reason}" for reason in reasons)]
    return "\n".join(lines)


def _communicators() -> tuple[tuple[Communicator, ...], bool]:
    """The rows of the native core's registry, and whether that can be opened."""
    try:
        return all_communicators(), True
    except ImportError:
        return (), False


def _frameworks() -> dict[str, bool]:
    """Which of them can be used. As many are tried at once as there are cores, as an import takes seconds."""
    with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)))) as pool:
        return dict(zip(_FRAMEWORKS, pool.map(_is_there, _FRAMEWORKS.values()), strict=True))


def _is_there(module: str) -> bool:
    if module != "horovod.keras" or current_environment().get("KERAS_BACKEND"):
        return _imports(module)
    # Keras takes the backend of its own file, or TensorFlow; a script may choose another one.
    return _imports(module) or any(_imports(module, KERAS_BACKEND=backend) for backend in _KERAS_BACKENDS)


def _imports(module: str, **env: str) -> bool:
    """In a process of its own: a framework that crashes or prints a lot does not harm horovodrun."""
    try:
        done = subprocess.run(
            import_command(module),
            env={**current_environment(), **env},
            capture_output=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False
