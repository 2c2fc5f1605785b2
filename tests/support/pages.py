# SPDX-License-Identifier: Apache-2.0
"""The Python code of the pages.

A block between ```python and ``` is a whole script if it makes all the names that it uses. Then the page must show how
it is started, in an indented line right after the block; what was printed may follow:

    $ horovodrun -np 2 python train.py
    [0]<stdout>:epoch 0: loss 0.0075

A script that starts its ranks itself is started by `$ python train.py`.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"\n\n((?:    (?:import|from) .*\n)(?:    .*\n)*)")
_START = re.compile(r"\n?    \$ (?:horovodrun -np (\d+(?: --\S+ \S+)*) )?python (\S+)\n((?:    .*\n)*)")


@dataclasses.dataclass(frozen=True)
class Script:
    code: str
    ranks: list[str]  # -np's value, and flags behind it; empty: it starts them itself
    file: str
    printed: list[str]  # empty: the page does not show it


def blocks_of(page: Path) -> list[tuple[int, str]]:
    """The code between fences, and what is indented and begins with an import; with the number of the line before."""
    text = page.read_text()
    found = [*_BLOCK.finditer(text), *_INDENTED.finditer(text)]
    return [(text.count("\n", 0, block.start(1)), textwrap.dedent(block[1])) for block in found]


def fenced(page: Path) -> list[str]:
    """What stands between fences and is not Python: job files, command lines."""
    return [block[2] for block in _FENCED.finditer(page.read_text()) if block[1] != "python"]


def job_file_of(page: Path) -> str:
    """The script of a guide: its first block between ```bash and ```."""
    found = re.search(r"^```bash\n(#!/bin/bash\n.*?)^```\n", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page.name} has no job file"
    return found[1]


def unknown_names(code: str) -> set[str]:
    """The names that the code uses and does not make."""
    used, made = set(), set(dir(builtins))
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                made.add(name)
            case ast.alias(name=name, asname=other):
                made.add(other or name.partition(".")[0])
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
    return used - made


def scripts_of(page: Path) -> list[Script]:
    """The whole scripts of a page. Raises ValueError if it does not say how to start one."""
    text = page.read_text()
    found = []
    for block in _BLOCK.finditer(text):
        if unknown_names(block[1]):
            continue
        start = _START.match(text, block.end())
        if start is None:
            raise ValueError(f"{page.name}: after a whole script, expected a line `    $ horovodrun -np N python FILE`")
        printed = [line.strip() for line in start[3].splitlines()]
        found.append(Script(block[1], (start[1] or "").split(), start[2], printed))
    return found
