# SPDX-License-Identifier: Apache-2.0
"""The documentation site's own code, tools/site, for tests of it."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from support.pages import ROOT


@functools.cache
def modules() -> tuple[Any, Any]:
    """tools/site's `stage` and `reference`."""
    folders = [str(ROOT / "tools" / "site"), str(ROOT / "tools")]
    sys.path += folders
    try:
        return importlib.import_module("stage"), importlib.import_module("reference")
    finally:
        for folder in folders:
            sys.path.remove(folder)


@functools.cache
def site() -> Any:
    return modules()[0].Site()


def api() -> dict[str, dict[str, Any]]:
    """By module and name what the reference says."""
    return {module: {one.name: one for one in entries} for module, (_, entries) in site().api.items()}
