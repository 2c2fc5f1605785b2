# SPDX-License-Identifier: Apache-2.0
"""The table of mutations fits the code: `make check-all` would tell only after hours."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_mutation_finds_its_text_once() -> None:
    mutations = runpy.run_path(str(ROOT / "tools" / "mutations.py"))["MUTATIONS"]
    assert len({one.name for one in mutations}) == len(mutations) >= 84
    counts = {
        (one.name, file, text): (ROOT / file).read_text(encoding="utf-8").count(text)
        for one in mutations
        for file, text, _ in one.edits()
    }
    assert {edit: count for edit, count in counts.items() if count != 1} == {}
