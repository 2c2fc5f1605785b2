# SPDX-License-Identifier: Apache-2.0
"""The errors of a file or an argument that a forecast cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["InputError", "number", "pair", "read_json", "table"]


class InputError(Exception):
    """A file or an argument that does not fit; the text names it, the field, and what was expected."""


def read_json(path: str, kind: str, version: int) -> dict[str, Any]:
    """The table in a file of ours. Raises InputError if it is another file, or of another version."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise InputError(f"cannot read {path}: {reason}") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise InputError(f'{path} is not a file of this kind: field "format": expected "{kind}"')
    if content.get("version") != version:
        raise InputError(
            f'{path}: field "version": got {content.get("version")!r}, this version of Horovod reads {version}\n'
            "hint: record it again, with the same version of Horovod"
        )
    return content


def table(content: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    """A field that is a table. Raises InputError."""
    found = content.get(name)
    if not isinstance(found, dict):
        raise InputError(f'{path}: field "{name}": expected a table, got {found!r}')
    return found


def number(content: dict[str, Any], name: str, path: str) -> float:
    """A field that is a number of 0 or more. Raises InputError."""
    found = content.get(name)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < float("inf"):
        raise InputError(f'{path}: field "{name}": expected a number of 0 or more, got {found!r}')
    return float(found)


def pair(content: dict[str, Any], name: str, path: str, may_be_0: bool = False) -> tuple[float, float]:
    """A field that is the lowest and the highest value of something. Raises InputError."""
    found = content.get(name)
    if (
        not isinstance(found, list)
        or len(found) != 2
        or not all(isinstance(one, (int, float)) and 0 <= one < float("inf") for one in found)
        or (found[0] == 0 and not may_be_0)
        or found[0] > found[1]
    ):
        raise InputError(f'{path}: field "{name}": expected the lowest and the highest value, got {found!r}')
    return float(found[0]), float(found[1])
