# SPDX-License-Identifier: Apache-2.0
"""tools/affected: which tests a change can touch."""

from __future__ import annotations

import runpy

import pytest
from support.pages import ROOT

AFFECTED = runpy.run_path(str(ROOT / "tools/affected"))


def test_the_table_has_paths_and_tests_that_exist() -> None:
    for begin, tests in AFFECTED["TABLE"]:
        assert (ROOT / begin).exists(), begin
        assert all(test == "native" or (ROOT / test).exists() for test in tests), begin


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("native/engine/submit.cc", ["native", "tests"]),  # no row: all
        ("src/horovod/core/collectives.py", ["native", "tests"]),
        ("CHANGELOG.md", []),
        ("tests/unit/launcher/test_lines.py", ["tests/unit/launcher/test_lines.py"]),
        ("tests/support/world.py", ["native", "tests"]),
        ("tests/native/communicators/mesh_test.cc", ["native"]),
        ("native/simulate/mesh.cc", ["native", "tests/unit"]),
        ("src/horovod/launcher/host/agent.py", ["tests/cluster", "tests/processes", "tests/unit"]),
    ],
)
def test_a_path_gives_its_tests(path: str, expected: list[str]) -> None:
    assert AFFECTED["tests_for"]([path]) == expected


def test_a_folder_covers_its_files() -> None:
    tests = AFFECTED["tests_for"](["tests/unit/launcher/test_lines.py", "src/horovod/jax/ops.py"])
    assert tests == ["tests/frameworks/jax", "tests/unit"]
