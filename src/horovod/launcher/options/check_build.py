# SPDX-License-Identifier: Apache-2.0
"""`horovodrun --check-build`: what this installation can be used with, each thing tried, not looked up."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import horovod
from horovod.core.gpus import why_no_nccl
from horovod.core.wording import tell
from horovod.launcher.host.processes import signal_name
from horovod.settings import current_environment
from horovod.world.communicators import Communicator, all_communicators
from horovod.world.interpreter import import_command

__all__ = ["check_build"]

_IMPORT_TIMEOUT_S = 120
_SILENT_S = 1.0  # an import that takes longer is announced
_FRAMEWORKS = {  # our package, and whose version is shown
    "TensorFlow": ("horovod.tensorflow", "tensorflow"),
    "PyTorch": ("horovod.torch", "torch"),
    "Keras": ("horovod.keras", "keras"),
    "JAX": ("horovod.jax", "jax"),
    "MXNet": ("horovod.mxnet", "mxnet"),
    "Caffe": ("horovod.caffe", "torch"),
}
_GLOO = "Gloo (Horovod's own transports have this name in flags)"
_KERAS_BACKENDS = ("tensorflow", "jax", "torch")


def check_build() -> str:
    rows, native = _communicators()
    built = {row.name for row in rows if row.available}
    without_nccl = why_no_nccl() if native else ""
    frameworks = _frameworks()
    sections = {
        "Available Frameworks": {_named(name, found): found.version is not None for name, found in frameworks.items()},
        # Scripts read this list, and expect "Gloo".
        "Available Controllers": {"MPI": "mpi" in built, _GLOO: native},
        "Available Transports": {f"{row.name} ({row.title})": row.available for row in rows},
        "Available Tensor Operations": {
            "NCCL": native and not without_nccl,
            **{name.upper(): name in built for name in ("ddl", "ccl", "mpi")},
            _GLOO: native,
        },
    }
    reasons = [f"{name}: {found.why}" for name, found in frameworks.items() if found.version is None]
    reasons += [f"{row.name}: {row.why}" for row in rows if not row.available]
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


@dataclasses.dataclass(frozen=True)
class _Found:
    """A framework that can be used has a version; the others have a reason."""

    version: str | None = None
    of: str = ""
    why: str = ""


def _named(name: str, found: _Found) -> str:
    return f"{name} ({found.of} {found.version})" if found.version else name


def _frameworks() -> dict[str, _Found]:
    """Tries as many at once as there are cores, as an import takes seconds."""
    with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)))) as pool:
        return dict(zip(_FRAMEWORKS, pool.map(_announced, _FRAMEWORKS), strict=True))


def _announced(name: str) -> _Found:
    """_find(), with a line on stderr if it is slow."""
    timer = threading.Timer(_SILENT_S, tell, [f"horovodrun: importing {name} ..."])
    timer.start()
    try:
        return _find(*_FRAMEWORKS[name])
    finally:
        timer.cancel()


def _find(module: str, framework: str) -> _Found:
    found = _tried(module, framework)
    if found.version is None and module == "horovod.keras" and not current_environment().get("KERAS_BACKEND"):
        # Keras takes the backend of its own file, or TensorFlow; a script may choose another one.
        others = (_tried(module, framework, KERAS_BACKEND=backend) for backend in _KERAS_BACKENDS)
        found = next((other for other in others if other.version is not None), found)
    return found


def _tried(module: str, framework: str, **env: str) -> _Found:
    """In a process of its own: a framework that crashes or prints a lot does not harm horovodrun."""
    try:
        done = subprocess.run(
            import_command(module, f"import {framework}; print({framework}.__version__)"),
            env={**current_environment(), **env},
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _Found(why=f"`import {module}` took more than {_IMPORT_TIMEOUT_S} s")
    if done.returncode < 0:
        return _Found(why=f"`import {module}` was ended by {signal_name(-done.returncode)}")
    if done.returncode:
        return _Found(why=_error_in(done.stderr) or f"`import {module}` ended with exit code {done.returncode}")
    return _Found(version=(done.stdout.split() or ["?"])[-1], of=framework)


def _error_in(stderr: str) -> str:
    """The first line of the exception, without the hints that follow."""
    lines = stderr.splitlines()
    start = max((index for index, line in enumerate(lines) if line.startswith("Traceback ")), default=-1)
    return next((line for line in lines[start + 1 :] if line and not line.startswith(" ")), "")
