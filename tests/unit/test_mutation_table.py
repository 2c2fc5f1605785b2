# SPDX-License-Identifier: Apache-2.0
"""The table of mutations fits the code: `make check-all` would tell only after hours."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_mutation_finds_its_text_once() -> None:
    mutations = runpy.run_path(str(ROOT / "tools" / "mutations.py"))["MUTATIONS"]
    found = {one.name: (ROOT / one.file).read_text(encoding="utf-8").count(one.text) for one in mutations}
    assert len(found) == len(mutations) >= 72
    assert {name: count for name, count in found.items() if count != 1} == {}
