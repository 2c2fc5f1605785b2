# SPDX-License-Identifier: Apache-2.0
"""Horovod's API on a new core: data-parallel training in five lines. Start with `import horovod.torch as hvd`."""

from typing import TYPE_CHECKING, Any

from horovod.core.missing import announce, attribute

if TYPE_CHECKING:
    from horovod.launcher.function.run_function import run

__version__ = "0.1.0"  # the one place: pyproject.toml and CMakeLists.txt read this line

__all__ = ["__version__", "run"]

announce()


if not TYPE_CHECKING:  # type checkers refuse other names

    def __getattr__(name: str) -> Any:
        if name == "run":  # at the first use: training scripts need no launcher
            from horovod.launcher.function.run_function import run

            return run
        return attribute(__name__, name)
