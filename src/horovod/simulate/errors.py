# SPDX-License-Identifier: Apache-2.0
"""The errors of a file or an argument that a forecast cannot use, and the checks of a file's fields.

Fields of fields are named by their place: `forward_ms.median`, `gradients.bytes[3]`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from horovod.core.telemetry.core_waits import MOST_TRUSTED

__all__ = ["InputError", "number", "pair", "read_json", "shown", "table", "unfit", "waited_share", "whole"]

# Above it, sums and products of a forecast would lose digits or overflow.
_MOST = 1e15
_LONGEST = 60


class InputError(Exception):
    """A file or an argument that does not fit; the text names it, the field, and what was expected."""


def shown(value: Any) -> str:
    """A value of a file as JSON in one line, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def unfit(path: str, field: str, expected: str, value: Any) -> InputError:
    """The error of a field whose value is another than expected."""
    return InputError(f"{path}: field {json.dumps(field)}: expected {expected}, got {shown(value)}")


def read_json(path: str, kind: str, version: int, what: str, hint: str) -> dict[str, Any]:
    """The table in a file of ours, whose numbers are all finite and at most 1e15.

    kind: the value of its field "format". what: the kind in words, such as "a profile". hint: the act if the version is
    another one. Raises InputError.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise InputError(f"cannot read {path}: {reason}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not {what}: expected a table, got {shown(content)}")
    if content.get("format") != kind:
        raise InputError(f'{path} is not {what} (its "format" is {shown(content.get("format"))}, not "{kind}")')
    found = content.get("version")
    if isinstance(found, bool) or found != version:
        raise InputError(
            f'{path}: field "version": got {shown(found)}, this version of Horovod reads {version}\nhint: {hint}'
        )
    _check_sizes(content, path)
    return content


def _check_sizes(content: dict[str, Any], path: str) -> None:
    left: list[tuple[str, Any]] = [(name, content[name]) for name in reversed(content)]
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{place}.{name}", value[name]) for name in reversed(value)]
        elif isinstance(value, list):
            left += [(f"{place}[{index}]", value[index]) for index in reversed(range(len(value)))]
        elif isinstance(value, (int, float)) and not abs(value) <= _MOST:
            raise unfit(path, place, f"a number of at most {_MOST:g}", value)


def waited_share(content: dict[str, Any], path: str) -> float:
    """Field "core_wait", 0 if there is none: the share of its time in which a measured rank waited for a core.

    Raises InputError if it is too much.
    """
    share = number(content.get("core_wait", 0.0), "core_wait", path)
    if share > MOST_TRUSTED:
        raise InputError(
            f"{path}: a measured rank waited for a core {100 * share:.0f}% of its time: the host was too busy\n"
            "hint: measure again while nothing else runs there, with no more ranks than cores"
        )
    return share


def table(content: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    """A field that is a table. Raises InputError."""
    found = content.get(name)
    if not isinstance(found, dict):
        raise unfit(path, name, "a table", found)
    return found


def number(value: Any, field: str, path: str, least: float = 0.0) -> float:
    """A number of `least` or more. Raises InputError."""
    if not _is_number(value) or value < least:
        raise unfit(path, field, f"a number of {least:g} or more", value)
    return float(value)


def whole(value: Any, field: str, path: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise unfit(path, field, f"a whole number from {least} to {most:g}", value)
    return value


def pair(value: Any, field: str, path: str, least: float, most: float) -> tuple[float, float]:
    """The lowest and the highest value of something, both from `least` to `most`. Raises InputError."""
    fits = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    if not fits or not least <= value[0] <= value[1] <= most:
        raise unfit(path, field, f"the lowest and the highest value, both from {least:g} to {most:g}", value)
    return float(value[0]), float(value[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
