# SPDX-License-Identifier: Apache-2.0
"""Horovod's API on a new core: data-parallel training in five lines. Start with `import horovod.torch as hvd`."""

__version__ = "0.1.0"  # the one place: pyproject.toml and CMakeLists.txt read this line

__all__ = ["__version__"]
