# SPDX-License-Identifier: Apache-2.0
"""How texts for people are written: names, values and counts in errors. Imports nothing of ours.

Names of tensors, files, functions and hosts, and texts of other programs, may hold characters that steer a terminal or
turn text around. All that Horovod prints shows these as escapes, as the native core does (native/platform/warning.cc).
With this module, so do the messages of the logger `horovod`.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, TextIO

__all__ = ["counted", "of_system", "on_one_line", "plain", "quoted", "shown", "tell"]

_LONGEST = 120
_TAIL = 30
_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """A text as a terminal can show it: what would steer the terminal, or turn text around, as escapes.

    Line ends and tabs stay. Escaped are control characters (C0, C1, DEL), Unicode's separators of lines and paragraphs,
    its marks and overrides of direction, and bytes that are not UTF-8.
    """
    return _STEERS.sub(_escape, str(text).replace("\r\n", "\n"))


def on_one_line(text: object) -> str:
    """As plain(), with line ends and tabs as escapes: for a name in a line or table."""
    return re.sub("[\t\n]", _escape, _STEERS.sub(_escape, str(text)))


def tell(text: object, stream: TextIO | None = None) -> None:
    """Prints a line of ours, as plain() shows it, to stderr or the stream. Raises OSError."""
    print(plain(text), file=sys.stderr if stream is None else stream, flush=True)


def quoted(name: Any) -> str:
    """A name in backquotes, on one line; the middle of a long one is left out."""
    text = str(name)
    if len(text) <= _LONGEST:
        return f"`{on_one_line(text)}`"
    return f"`{on_one_line(_ends(text))}` ({len(text.encode(errors='surrogatepass'))} bytes)"


def shown(value: Any) -> str:
    """An argument's value on one line; the middle of a long one is left out."""
    text = on_one_line(" ".join(repr(value).split()))
    return text if len(text) <= _LONGEST else _ends(text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """For example `1 rank` and `2 ranks`. `plural`: if it is not the noun with an s behind it."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def of_system(error: BaseException) -> str:
    """An error's text; that of the system without its number, behind the file that it is about."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{on_one_line(error.filename)}: {error.strerror}" if error.filename else error.strerror


def _ends(text: str) -> str:
    return f"{text[: _LONGEST - _TAIL]}...{text[-_TAIL:]}"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\\n" if code == 10 else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class _Plain(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = plain(record.getMessage()), None
        return True


logging.getLogger("horovod").addFilter(_Plain())
