# SPDX-License-Identifier: Apache-2.0
"""Links between the pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_link_of_a_page_leads_to_a_file() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)", page.read_text())]
    local = [(page, link) for page, link in links if not link.startswith(("http:", "https:"))]
    assert len(local) > 30
    assert [f"{page.name}: {link}" for page, link in local if not (page.parent / link).exists()] == []
