# SPDX-License-Identifier: Apache-2.0
"""The rows of the settings' table: how each kind of value is read and spelled. The table: table.py.

Imports nothing of ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

__all__ = [
    "Parse",
    "SWITCH_WORDS",
    "Row",
    "SettingError",
    "choice",
    "cores",
    "counts",
    "integer",
    "milliseconds",
    "number",
    "parse_flag",
    "parsed",
    "path_by_rank",
    "port",
    "setting",
    "spelled",
    "switch",
    "text",
    "word",
]

Parse = Callable[[str], Any]

SWITCH_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class SettingError(ValueError):
    """A setting's value cannot be used. The text names the variable, the value and what is expected."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One setting. `flag_unit` multiplies its flag's number (1 MB = 2**20); a `yaml` of `not KEY` says the opposite."""

    keyword: str
    variable: str
    parse: Parse
    expected: str
    sentence: str
    default: Any
    flag: str | None = None
    yaml: str | None = None
    flag_unit: int = 1
    choices: tuple[str, ...] = ()


def integer(least: int, most: int | None = None) -> tuple[Parse, str]:
    """A whole number. Each kind is a parser, which raises ValueError, and what it expects, in words."""

    def parse(text: str) -> int:
        value = int(text)
        if value < least or (most is not None and value > most):
            raise ValueError(text)
        return value

    return parse, f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"


def port() -> tuple[Parse, str]:
    """A port of TCP."""

    def parse(text: str) -> int:
        value = int(text)
        if not 1 <= value <= 65535:
            raise ValueError(text)
        return value

    return parse, "a port, 1 to 65535"


def number(least: float) -> tuple[Parse, str]:
    """A finite number."""

    def parse(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or value < least:
            raise ValueError(text)
        return value

    return parse, f"a number, {least:g} or more"


def switch() -> tuple[Parse, str]:
    """True or false; an empty text is false."""

    def parse(text: str) -> bool:
        word = text.strip().lower()
        return SWITCH_WORDS[word] if word in SWITCH_WORDS else int(word or 0) > 0

    return parse, f"0 or 1, or one of {', '.join(SWITCH_WORDS)}"


def choice(*choices: str) -> tuple[Parse, str]:
    """One of these words, in lower case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(text)
        return word

    return parse, "one of " + ", ".join(choices)


def cores() -> tuple[Parse, str]:
    """Numbers of processor cores."""

    def parse(text: str) -> tuple[int, ...]:
        cores = tuple(int(part) for part in text.split(","))
        if min(cores) < 0:
            raise ValueError(text)
        return cores

    return parse, "core numbers with commas between"


def counts() -> tuple[Parse, str]:
    """Numbers of things, one at least of each."""

    def parse(text: str) -> tuple[int, ...]:
        counts = tuple(int(part) for part in text.split(","))
        if min(counts) < 1:
            raise ValueError(text)
        return counts

    return parse, "whole numbers, 1 or more, with commas between"


def word() -> tuple[Parse, str]:
    """A name, in lower case; it may have hyphens."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if not word.replace("-", "_").isidentifier():
            raise ValueError(text)
        return word

    return parse, "a name"


def text() -> tuple[Parse, str]:
    """Any text, as it stands."""
    return str, "text"


def path_by_rank() -> tuple[Parse, str]:
    """A path with {rank} in it, so that each rank has a file of its own."""

    def parse(text: str) -> str:
        if text and "{rank}" not in text:
            raise ValueError(text)
        return text

    return parse, "a path with {rank} in it"


def setting(
    variable: str,
    kind: tuple[Parse, str],
    default: Any,
    sentence: str,
    *,
    flag: str | None = None,
    yaml: str | None = None,
    flag_unit: int = 1,
    choices: tuple[str, ...] = (),
) -> Any:
    """The field of a dataclass that is a row of the table; its name is the row's keyword."""
    parse, expected = kind
    row = {"variable": variable, "parse": parse, "expected": expected, "sentence": sentence, "default": default}
    row.update({"flag": flag, "yaml": yaml, "flag_unit": flag_unit, "choices": choices})
    return dataclasses.field(default=default, metadata={"row": row})


def parse_flag(row: Row, text: str) -> Any:
    """The value that a flag's text stands for, in the row's own unit. Raises SettingError."""
    if row.flag_unit == 1:
        return parsed(row, text, name=row.flag)
    try:
        return row.parse(str(int(text) * row.flag_unit))
    except ValueError:
        raise SettingError(f"{row.flag}={text!r}: expected {row.expected}") from None


def parsed(row: Row, text: str, name: str | None = None) -> Any:
    """The value that a variable's text stands for. `name`: of another spelling, for the error. Raises SettingError."""
    try:
        return row.parse(text)
    except ValueError:
        raise SettingError(f"{name or row.variable}={text!r}: expected {row.expected}") from None


def spelled(value: object) -> str:
    """A value as a text that its kind reads."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def milliseconds(seconds: float) -> int:
    """For the native core. Never rounded down to 0, which means "off"."""
    return math.ceil(seconds * 1000)
