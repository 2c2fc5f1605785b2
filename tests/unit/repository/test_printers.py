# SPDX-License-Identifier: Apache-2.0
"""All that is printed is plain: `tell` and `plain` of core/wording.py show what would steer a terminal as escapes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[3] / "src" / "horovod"
PRINTERS = {"print", "sys.stdout.write", "sys.stderr.write", "warnings.warn"}
# Who prints otherwise, and why.
ALLOWED = {
    "bench/__main__.py: _started_by_horovodrun": "what the ranks have printed",
    "bench/link.py: run": "numbers",
    "bench/strategies.py: _report": "numbers, and names of ours",
    "caffe/log.py: _write": "a stamp, and the text by plain()",
    "caffe/run_intelcaffe.py: main": "how it is used",
    "keras/callback_parts.py: on_epoch_end": "numbers",
    "launcher/drill/rank.py: tell": "JSON, which has escapes of its own",
    "launcher/function/run_task.py: main": "the traceback, as Python would print it",
    "launcher/job/supervision.py: _print": "a time, and the text by plain()",
    "ray/elastic.py: create_settings": "names of ours",
    "settings/table.py: _core": "numbers; settings import nothing of ours",
    "spark/common/params.py: _set": "names of ours",
    "spark/lightning/estimator.py: _check": "names of ours",
    "spark/runner.py: run": "names of ours",
    "spark/runner.py: run_elastic": "names of ours",
}


def is_plain(node: ast.expr) -> bool:
    """True of constants, of numbers by their format, and of what plain() has made."""
    if isinstance(node, ast.JoinedStr):
        return all(isinstance(part, ast.Constant) or part.format_spec is not None for part in node.values)
    return isinstance(node, ast.Constant) or ast.unparse(node).startswith("plain(")


def printed(path: Path) -> Iterator[str]:
    """`file: function` of each call that prints a text which may hold anything."""
    inside: list[tuple[str, ast.AST]] = [("", ast.parse(path.read_text(encoding="utf-8")))]
    while inside:
        where, node = inside.pop()
        for child in ast.iter_child_nodes(node):
            inside.append((child.name if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else where, child))
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            writes = name == "os.write" and ast.unparse(node.args[0]) in ("1", "2")
            if (name in PRINTERS or writes) and not all(map(is_plain, node.args[writes : writes + 1])):
                yield f"{path.relative_to(SOURCES).as_posix()}: {where}"


def test_what_is_printed_is_plain() -> None:
    found = {place for path in SOURCES.rglob("*.py") if path.name != "wording.py" for place in printed(path)}
    assert found == set(ALLOWED)
