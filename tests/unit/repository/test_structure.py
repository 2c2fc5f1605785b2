# SPDX-License-Identifier: Apache-2.0
"""The native folders stand on each other in one order, files stay small, and pages name files that exist."""

from __future__ import annotations

import ast
import collections
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "native"
WALL = "the wall"  # c_api.cc and what stands beside it
HEADER = "horovod"  # include/horovod/horovod.h
# What a folder may include of ours, besides itself.
INCLUDES = {
    WALL: {"engine", "communicators", "world", "reduction", "platform", HEADER},
    "engine": {
        "host",
        "wakeup",
        "liveness",
        "settings",
        "gpu",
        "execution",
        "fusion",
        "negotiation",
        "communicators",
        "collectives",
        "timeline",
        "platform",
        HEADER,
    },
    "gpu": {"wakeup", "settings", "execution", "fusion", "device", "negotiation", "communicators", "platform"},
    "execution": {"fusion", "device", "negotiation", "communicators", "collectives", "reduction", "platform"},
    "liveness": {"host", "settings", "negotiation", "platform"},
    "wakeup": {"host", "negotiation", "platform"},
    "host": {"negotiation", "platform"},
    "settings": {"negotiation", "reduction", "platform", HEADER},
    "fusion": {"negotiation"},
    "device": {"reduction", "platform"},
    "negotiation": {"world", "reduction", "platform"},
    "communicators": {"device", "collectives", "transport", "reduction", "world", "platform"},
    "collectives": {"transport", "reduction", "world", "platform"},
    "transport": {"platform"},
    "reduction": {"platform", HEADER},
    "timeline": {"platform"},
    "platform": {HEADER},
    # A library of its own, in which hosts are in virtual time.
    "simulate": {"communicators", "fusion", "negotiation", "collectives", "transport", "world", "platform", HEADER},
    "shims": {HEADER},  # separate libraries, which see what any caller sees
    "world": set(),
    "include": set(),
}
MOST_FILES = 30  # of a folder
MOST_METHODS = 40  # of a class
# Files of at most this many lines. Those that are longer may only shrink.
LIMIT = 500
LINE = 120
LONGER = {
    "tests/frameworks/torch/test_torch_optimizer.py": 595,
    "tests/native/negotiation/model.h": 541,
}


def sources() -> list[Path]:
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in {".cc", ".h"})


def folder_of(path: Path) -> str:
    parts = path.relative_to(NATIVE).parts
    return parts[0] if len(parts) > 1 else WALL


def included(path: Path) -> dict[str, str]:
    """The folders of ours that a file includes, each with one of the includes."""
    names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    return {(name.split("/")[0] if "/" in name else folder_of(path)): name for name in names}


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(NATIVE)))
def test_a_native_file_includes_only_what_its_folder_may(path: Path) -> None:
    folder = folder_of(path)
    found = included(path)
    assert set(found) <= INCLUDES[folder] | {folder}, found


def test_no_native_folders_include_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter(INCLUDES).prepare()
    used: dict[str, set[str]] = {}
    for path in sources():
        used.setdefault(folder_of(path), set()).update(included(path))
    unused = {folder: INCLUDES[folder] - used.get(folder, set()) for folder in INCLUDES}
    assert not any(unused.values()), f"allowed, and not used: {unused}"


def test_nothing_knows_nccl_but_by_its_row() -> None:
    nccl = NATIVE / "communicators" / "nccl"
    for path in sources():
        text = path.read_text(encoding="utf-8")
        assert path.parent == nccl or not re.search(r'nccl::|#include "communicators/nccl/', text), path


@pytest.mark.parametrize("top", ["native", "src", "tests"])
def test_no_folder_has_many_files(top: str) -> None:
    files = collections.Counter(path.parent for path in (ROOT / top).rglob("*") if path.suffix in {".cc", ".h", ".py"})
    assert len(files) > 20
    assert {folder: count for folder, count in files.items() if count > MOST_FILES} == {}


def test_no_native_class_has_many_methods() -> None:
    methods = {}
    for path in sources():
        for name, body in re.findall(r"^class (\w+)[^;]*?\{\n(.*?)^\};", path.read_text(encoding="utf-8"), re.M | re.S):
            declared = re.findall(r"^  (?:[\w:<>,*&\[\]]+ )+[*&]?(\w+)\(", body, re.M)  # clang-format has indented them
            methods[name] = len([method for method in declared if method != name])
    assert len(methods) > 60 and methods["Segment"] > 20
    assert {name: count for name, count in methods.items() if count > MOST_METHODS} == {}


def test_no_python_class_has_many_methods() -> None:
    methods = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                methods[f"{path.name}: {node.name}"] = sum(isinstance(one, ast.FunctionDef) for one in node.body)
    assert len(methods) > 300 and methods["supervision.py: Supervision"] > 20
    assert {name: count for name, count in methods.items() if count > MOST_METHODS} == {}


def test_no_native_state_is_a_threads_own() -> None:
    """What a thread is doing stands in the object that it works on (wakeup/wakeup.h)."""
    for path in sources():
        assert "thread_local" not in path.read_text(encoding="utf-8"), path


def test_no_native_line_is_too_long() -> None:
    """clang-format breaks no comment."""
    paths = [*sources(), *(path for path in (ROOT / "tests").rglob("*") if path.suffix in {".cc", ".h", ".c"})]
    lines = [(path, number, line) for path in paths for number, line in enumerate(path.read_text().splitlines(), 1)]
    assert [f"{path}:{number}" for path, number, line in lines if len(line) > LINE] == []


def test_a_long_file_only_gets_shorter() -> None:
    lengths = {}
    for top in ("src", "native", "tests", "tools"):
        for path in (ROOT / top).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in {".py", ".cc", ".h"}:
                lengths[name] = len(path.read_text(encoding="utf-8").splitlines())
    assert len(lengths) > 300
    longer = {name: length for name, length in lengths.items() if length > LIMIT}
    assert {name: length for name, length in longer.items() if length > LONGER.get(name, LIMIT)} == {}
    assert set(LONGER) == set(longer), "a file is short enough now: take it out of the table"


def test_every_file_that_architecture_names_exists() -> None:
    """A path starts at the root, in src/horovod or in native; a bare name is told apart by what stands around it."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w./*]+\.(?:py|cc|h|md))`", text))
    assert len(names) > 50
    sought = [ROOT / "src" / "horovod", NATIVE]

    def exists(name: str) -> bool:
        if "/" not in name:
            return any(list(root.rglob(name)) for root in sought)
        return any((root / name).is_file() for root in (ROOT, *sought))

    assert [name for name in sorted(names) if not exists(name)] == []


def test_the_gradients_way_has_as_many_files_as_it_says() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text[text.index("## File by file") :]
    section = section[: section.index("## Who calls whom")]
    rows = re.findall(r"^\|[ \d]*\| `([\w./]+)` \|", section, re.MULTILINE)
    said = re.search(r"these (\d+) files", section)
    assert said is not None and int(said[1]) == len(rows) == len(set(rows))
