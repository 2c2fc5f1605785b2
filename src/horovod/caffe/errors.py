# SPDX-License-Identifier: Apache-2.0
"""The error of files and settings that cannot work. The commands print it as Caffe prints a failed check."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["CaffeError", "nearest"]


class CaffeError(ValueError):
    """A file, a field or a flag is wrong. The text names the file, the line if there is one, and the cause."""

    located = False  # whether the text begins with a prototxt's name


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the known name that is most like `name`; empty if none is."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"\nhint: did you mean {by_lower[found[0]]!r}?" if found else ""
