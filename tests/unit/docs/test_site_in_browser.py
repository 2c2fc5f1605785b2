# SPDX-License-Identifier: Apache-2.0
"""The built site in headless Chromium: the search, and pages at the widths of a desk and of a telephone."""

from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import chromium
from support.pages import ROOT
from support.site import site

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]

PYTHON = ROOT / ".venv-docs/bin/python"
BUILT = ROOT / "build" / "docs"
# Says by how much each page is wider than the frame that shows it. Furo lets the content scroll, and not the page.
MEASURE = """\
<!doctype html><body><script>
for (const page of %s) for (const width of [1280, 390]) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 800; frame.src = page;
  frame.onload = () => {
    const line = document.createElement("p");
    const over = (element) => element.scrollWidth - element.clientWidth;
    const root = frame.contentDocument;
    line.textContent = `${page} ${width}: ${over(root.documentElement)} ${over(root.querySelector(".content"))}`;
    document.body.append(line);
  };
  document.body.append(frame);
}
</script></body>
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not PYTHON.exists():
        pytest.skip("not run: there is no .venv-docs; `make docs` makes it")
    subprocess.run([PYTHON, ROOT / "tools/site"], cwd=ROOT, check=True, timeout=900)
    with chromium.served(BUILT) as found:
        yield found


def results(address: str, words: str, tmp_path: Path) -> list[str]:
    """The links that the search shows, best first."""
    shown = chromium.document(f"{address}/search.html?q={words.replace(' ', '+')}", tmp_path / "profile")
    listed = re.search(r'<div id="search-results">.*?</article>', shown, re.DOTALL)
    assert listed
    return [html.unescape(link) for link in re.findall(r'href="([^"?]+)', listed[0])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "settings.html#envvar-HOROVOD_FUSION_THRESHOLD"),
        ("alltoall", "api/horovod.torch.html#horovod.torch.alltoall"),
        ("hvd.alltoall", "api/horovod.torch.html#horovod.torch.alltoall"),
        ("fusion-threshold-mb", "flags.html#cmdoption-horovodrun-fusion-threshold-mb"),
        ("mismatch", "errors/mismatch.html"),
        ("slurm", "guides/slurm.html"),
        ("which rank is slow", "profile.html#which-rank-is-slow"),
    ],
)
def test_a_search_leads_to_the_place(words: str, expected: str, address: str, tmp_path: Path) -> None:
    found = results(address, words, tmp_path)
    assert expected in [link.partition(f"{address}/")[2] or link for link in found[:5]], found


def test_no_page_scrolls_sideways(address: str, tmp_path: Path) -> None:
    pages = ["index.html", "settings.html", "flags.html", "api/horovod.torch.html", "errors/mismatch.html"]
    pages += [f"{next(iter(listed))}.html" for _, listed in site().chapters]
    measure = BUILT / "measure.html"
    measure.write_text(MEASURE % pages)
    try:
        shown = chromium.document(f"{address}/measure.html", tmp_path / "profile")
    finally:
        measure.unlink()
    seen = dict(re.findall(r"<p>(\S+ \d+): (\d+ \d+)</p>", shown))
    assert set(seen) == {f"{page} {width}" for page in pages for width in (1280, 390)}
    assert {place: over for place, over in seen.items() if over != "0 0"} == {}


def test_pages_ask_no_other_host_for_anything() -> None:
    asked = re.compile(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]+"')
    pages = [*BUILT.rglob("*.html")]
    assert len(pages) > 100
    assert [(page.name, found) for page in pages for found in asked.findall(page.read_text())] == []
