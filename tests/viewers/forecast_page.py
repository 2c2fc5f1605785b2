# SPDX-License-Identifier: Apache-2.0
"""The page of `python -m horovod.simulate forecast --html` fits wide and narrow windows, shows its chart and bars apart
from their labels, and fetches nothing. Arguments: the file, a folder for Chromium's profile."""

import sys
from pathlib import Path

from chromium import in_widths, shown

file, profile = sys.argv[1:]
WIDTHS = (1200, 600, 400)
CHART = """[...document.querySelectorAll("svg")].map(one => {
  const box = one.querySelector("polygon").getBoundingClientRect();
  return [one.getAttribute("aria-label"), box.width, box.height, one.querySelectorAll("rect").length];
})"""
# The text of a label must end before the bar beside it begins.
ROWS = """[...document.querySelectorAll(".row")].map(one => {
  const range = document.createRange();
  range.selectNodeContents(one.children[0]);
  const [text, bar] = [range.getBoundingClientRect(), one.children[1].getBoundingClientRect()];
  return [one.children[0].innerText, text.right <= bar.left || text.bottom <= bar.top];
})"""

with shown(Path(file).resolve().as_uri(), profile) as page:
    for width in in_widths(page, WIDTHS):
        ((label, wide, high, dots),) = page.evaluate(CHART)
        assert label == "efficiency by hosts" and wide > 0.8 * min(width, 992) - 40 and high > 20 and dots == 7
        rows = page.evaluate(ROWS)
        assert len(rows) > 6 + 2 and all(apart for _, apart in rows), (width, rows)  # six causes, then what would help
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
print(f"Chromium: the chart and {len(rows)} bars at widths of {', '.join(map(str, WIDTHS))}")
