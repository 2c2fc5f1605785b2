# SPDX-License-Identifier: Apache-2.0
"""The machine and the software of this process, for records of benchmarks and for reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["machine", "packages"]

# Packages that a bug may depend on. Their versions are read without an import, which takes seconds.
_PACKAGES = (
    *("torch", "tensorflow", "tensorflow-cpu", "keras", "tf-keras", "jax", "jaxlib", "mxnet", "numpy"),
    *("optax", "flax", "lightning", "pytorch-lightning", "pyspark", "ray", "mpi4py", "ml-dtypes", "pyarrow"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cuda-runtime-cu12"),
)
_DRIVER = Path("/proc/driver/nvidia/version")


def machine() -> dict[str, Any]:
    """The processor, the cores that this process may use, the system, and the load."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg(),
        **({"gpu_driver": _first_line(_DRIVER)} if _DRIVER.exists() else {}),
    }


def packages() -> dict[str, str]:
    """The versions of the installed packages that matter here."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").partition("\n")[0]
    except OSError as error:
        return str(error.strerror)
