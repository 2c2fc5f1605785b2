# SPDX-License-Identifier: Apache-2.0
"""Commands that start another interpreter with this very package, whatever files the working directory has."""

from __future__ import annotations

import sys
from pathlib import Path

import horovod

__all__ = ["import_command", "package_root", "python_command"]

# One line, since a shell of another machine may read it, and csh takes no more. Nothing is imported before the working
# directory is off the search path: -c puts it first, an empty entry of PYTHONPATH somewhere. `os` is loaded already.
# Where this package is not at the same place, it is looked for as usual.
_FIND = (
    "import sys, os; d = {{'', os.getcwd()}} - {{os.path.dirname(os.__file__)}}; "
    "sys.path[:] = [p for p in sys.path if p not in d]; from importlib import machinery as m, util as u; "
    "f = m.PathFinder.find_spec('horovod', [{root!r}]); h = f and u.module_from_spec(f); "
    "h and (sys.modules.update(horovod=h), f.loader.exec_module(h)); sys.path.append({root!r}); "
)
_RUN = "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"


def python_command(module: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module of this very package, whatever the user's directory and PYTHONPATH hold.

    What is installed beside this package comes last: it may be an obsolete copy of a module of the standard library.
    """
    return [python, "-c", _FIND.format(root=package_root()) + _RUN.format(module=module)]


def import_command(module: str, then: str = "") -> list[str]:
    """The command that imports a module, of this very package as well, and then runs this code."""
    return [sys.executable, "-c", _FIND.format(root=package_root()) + f"import {module}\n{then}"]


def package_root() -> str:
    """The folder from which this package is imported."""
    return str(Path(horovod.__file__).resolve().parent.parent)
