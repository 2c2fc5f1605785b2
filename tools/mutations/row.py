# SPDX-License-Identifier: Apache-2.0
"""A mutation that is written by hand: a mistake that breaks a promise, and the tests that must notice it.

A row is for what no operator of operators.py makes: order, races, lifetimes, security, a rule of the whole protocol.
"""

from __future__ import annotations

import dataclasses
import shlex


class StaleError(Exception):
    """A mutation does not fit the code any more, or the unbroken copy fails."""


@dataclasses.dataclass(frozen=True)
class Test:
    """A native test program with the part of the names to run, or pytest's arguments."""

    arguments: tuple[str, ...]

    @property
    def native(self) -> bool:
        return self.arguments[0].endswith("_test")

    @property
    def environment(self) -> str:
        """The virtual environment that pytest runs in; empty for this interpreter's."""
        of = {"tests/frameworks/mxnet": ".venv-mxnet", "tests/schedulers": ".venv-schedulers"}
        return next((of[part] for part in of if any(part in argument for argument in self.arguments)), "")

    def __str__(self) -> str:
        return shlex.join(self.arguments)


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    why: str
    edits: tuple[tuple[str, str, str], ...]  # file, a text that it has exactly once, the replacement
    tests: tuple[Test, ...]
    # Built with -fsanitize=this, and caught only if the output holds the report: such a test may pass otherwise.
    sanitizer: str = ""
    report: str = ""


def row(
    name: str,
    file: str,
    text: str,
    replacement: str,
    why: str,
    *tests: str,
    also: tuple[tuple[str, str, str], ...] = (),
    sanitizer: str = "",
    report: str = "",
) -> Mutation:
    arguments = tuple(Test(tuple(shlex.split(test))) for test in tests)
    return Mutation(name, why, ((file, text, replacement), *also), arguments, sanitizer, report)


def edited(original: str, file: str, text: str, replacement: str) -> str:
    if original.count(text) != 1:
        raise StaleError(f"{file} holds the text {original.count(text)} times, not once: {text}")
    return original.replace(text, replacement)
