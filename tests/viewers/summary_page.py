# SPDX-License-Identifier: Apache-2.0
"""The page of `python -m horovod.trace summary --html` fits a wide and a narrow window, shows all its pictures, and
fetches nothing. Arguments: the file, a folder for Chromium's profile."""

import sys
from pathlib import Path

from chromium import in_widths, shown

file, profile = sys.argv[1:]
WIDTHS = (1200, 400)
SIZES = """[...document.querySelectorAll("svg")].map(one => {
  const box = one.getBoundingClientRect();
  return [one.getAttribute("aria-label"), box.width, box.height, one.querySelectorAll("rect").length];
})"""

with shown(Path(file).resolve().as_uri(), profile) as page:
    for _ in in_widths(page, WIDTHS):
        pictures = page.evaluate(SIZES)
        assert len(pictures) == 1 + 2 * 3, pictures
        assert all(wide > 150 and high > 10 for _, wide, high, _ in pictures), pictures
        assert pictures[0][3] > 3 * 15 and sum(shapes for *_, shapes in pictures[1:]) >= 5, pictures
        bars = page.evaluate("[...document.querySelectorAll('.bar i')].map(one => one.getBoundingClientRect().width)")
        assert len(bars) >= 2 * 2 + 2 and max(bars) > 100, bars
        texts = page.evaluate("[...document.querySelectorAll('h2')].map(one => one.innerText)")
        assert texts[:2] == ["Steps", "One step"], texts
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
print(f"Chromium: {len(pictures)} pictures at widths of {' and '.join(map(str, WIDTHS))}")
