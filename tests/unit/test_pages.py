# SPDX-License-Identifier: Apache-2.0
"""Links between the pages lead somewhere, and pages that are made from tables are up to date."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_link_of_a_page_leads_to_a_file() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)", page.read_text())]
    local = [(page, link) for page, link in links if not link.startswith(("http:", "https:"))]
    assert len(local) > 30
    assert [f"{page.name}: {link}" for page, link in local if not (page.parent / link).exists()] == []


def test_pages_are_made_from_their_tables() -> None:
    pages = runpy.run_path(str(ROOT / "tools" / "pages"))["pages"]()
    assert len(pages) == 2
    for path, text in pages.items():
        assert path.read_text() == text, "run tools/pages"
