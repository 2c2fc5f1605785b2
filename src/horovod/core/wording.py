# SPDX-License-Identifier: Apache-2.0
"""How names, values and counts are written in the texts of errors. Imports nothing of ours.

Names are shown as the native core shows them (native/negotiation/names.cc).
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["counted", "of_system", "quoted", "shown"]

_LONGEST = 120
_TAIL = 30


def quoted(name: Any) -> str:
    """A name in backquotes, on one line; the middle of a long one is left out."""
    text = str(name)
    if len(text) <= _LONGEST:
        return f"`{_on_one_line(text)}`"
    return f"`{_on_one_line(_ends(text))}` ({len(text.encode(errors='surrogatepass'))} bytes)"


def shown(value: Any) -> str:
    """An argument's value on one line; the middle of a long one is left out."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else _ends(text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """For example `1 rank` and `2 ranks`. `plural`: if it is not the noun with an s behind it."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def of_system(error: BaseException) -> str:
    """An error's text; that of the system without its number, behind the file that it is about."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _ends(text: str) -> str:
    return f"{text[: _LONGEST - _TAIL]}...{text[-_TAIL:]}"


def _on_one_line(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", lambda found: "\\n" if found[0] == "\n" else f"\\x{ord(found[0]):02x}", text)
