# SPDX-License-Identifier: Apache-2.0
"""Values of flags that command lines share. For argparse's `type`, which says what is wrong and ends."""

from __future__ import annotations

import argparse
import math

from horovod.simulate.errors import InputError

__all__ = ["check_file_name", "count", "gbit", "number"]

_MOST = 100_000


def number(text: str, least: float, most: float) -> float:
    """A number from `least` to `most`. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from {least:g} to {most:g}")
    return value


def gbit(text: str) -> float:
    """The rate of a link in Gbit/s. Raises ArgumentTypeError."""
    return number(text, 1e-3, 1e6)


def count(text: str) -> int:
    """A whole number from 1 to 100000. Raises ArgumentTypeError."""
    if not text.isdecimal() or not 0 < int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to {_MOST}")
    return int(text)


def check_file_name(flag: str, path: str) -> None:
    """Raises InputError if it is empty: it would be as if the flag were not given."""
    if not path:
        raise InputError(f"an empty name was given as {flag}\nhint: give the name of a file")
