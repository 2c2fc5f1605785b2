# SPDX-License-Identifier: Apache-2.0
"""Modules of Horovod's that are not in this version: importing one, or asking a package for it, raises an error.

An import raises NotInThisVersionError. An attribute that is asked for raises AttributeError with the same text, so that
hasattr() answers as for any name that is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from horovod.core.exceptions import NotInThisVersionError, explain_command

__all__ = ["MODULES", "announce", "missing"]

MODULES = frozenset(("horovod.ray", "horovod.spark"))


_HINT = "\nhint: import a framework's package, for example `import horovod.torch as hvd`"


def _text(module: str) -> str:
    return (
        f"{module} is not in this version\n"
        "hint: it is part of Horovod's interface, and is to come; the README lists what works today"
    )


class _Finder:
    """Stands before the finders of files, which would say `No module named ...`.

    It does not derive from importlib.abc.MetaPathFinder, whose import loads 25 more modules.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in MODULES:
            # Not a ModuleNotFoundError: `from horovod import spark` drops its text.
            raise NotInThisVersionError(_text(fullname), name=fullname)


def announce() -> None:
    """Makes imports of these modules say that they are not in this version."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def missing(package: str, name: str) -> AttributeError:
    """The error that a package's `__getattr__` raises for a name that it does not have."""
    module = f"{package}.{name}"
    return AttributeError(
        f"{_text(module)}\n{explain_command(NotInThisVersionError.code)}"
        if module in MODULES
        else f"module {package!r} has no attribute {name!r}" + (_HINT if package == "horovod" else ""),
        name=name,
    )
