# SPDX-License-Identifier: Apache-2.0
"""Links between the pages lead somewhere, their Python code parses, and pages that are made from tables are up to date.

tests/processes/launcher/test_scripts_of_pages.py runs the scripts.
"""

from __future__ import annotations

import ast
import itertools
import re
import runpy
import types
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, blocks_of, unknown_names


def test_every_link_of_a_page_leads_to_a_file() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)", page.read_text())]
    local = [(page, link) for page, link in links if not link.startswith(("http:", "https:"))]
    assert len(local) > 30
    assert [f"{page.name}: {link}" for page, link in local if not (page.parent / link).exists()] == []


def test_every_path_of_a_page_about_the_code_is_that_of_a_file() -> None:
    """Of a path with a folder, as `engine/submit.cc`: ARCHITECTURE.md says from where it counts."""
    pages = [page for page in PAGES if page.name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "internals.md")]
    pages += sorted((ROOT / "docs/decisions").glob("*.md"))
    begins = [ROOT / folder for folder in ("", "native", "src/horovod", "native/include/horovod")]
    paths = [(page, path) for page in pages for path in re.findall(r"`([\w./-]+/[\w.-]*\.\w+)`", page.read_text())]
    assert len(paths) > 100
    wrong = [f"{page.name}: {path}" for page, path in paths if not any((begin / path).exists() for begin in begins)]
    assert wrong == ["CONTRIBUTING.md: tests/frameworks/X/test_X_contract.py"]  # X is any framework


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_code_of_a_page_parses(page: Path) -> None:
    for line, code in blocks_of(page):
        try:
            ast.parse(code)
        except SyntaxError as error:
            pytest.fail(f"{page.name}, line {line + (error.lineno or 0)}: {error.msg}")


def test_python_code_stands_between_fences() -> None:
    """So that the test before sees it."""
    fences = [
        line for page in PAGES for line in page.read_text().splitlines() if line.lstrip().startswith(("```", "~~~"))
    ]
    assert set(fences) == {"```python", "```bash", "```"}  # bash: the job files of guides


def test_names_that_a_script_does_not_make_are_found() -> None:
    assert unknown_names("import a.b as c, d.e\nprint(c, d, [f for f in g])\nfor h in c: h.i = len(j)") == {"g", "j"}
    assert unknown_names("def f(x, *y, z=1):\n    return x + y + z + w\nwith f() as (k, l): k(l)\nf()") == {"w"}


def test_each_rank_has_its_share_of_the_data_where_a_page_calls_fit() -> None:
    shares = re.compile(r"slice\(hvd\.rank\(\)|shard\(|send_to_data_service\(")
    calls = 0
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            if "model.fit(" in block:
                calls += 1
                assert shares.search(block), f"{page}: {block}"
    assert calls >= 3


def test_pages_are_made_from_their_tables() -> None:
    pages = runpy.run_path(str(ROOT / "tools" / "pages"))["pages"]()
    assert len(pages) == 5
    for path, text in pages.items():
        assert path.read_text() == text, "run tools/pages"


@pytest.mark.parametrize("name", ["README.md", "docs/frameworks/keras.md"])
def test_the_shares_of_the_keras_lines_are_equal_for_data_of_any_length(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line.startswith(("share =", "x, y = "))]
    assert len(lines) == 2
    for size, length in itertools.product(range(1, 5), (0, 3, 1024, 1025)):
        shares = []
        for rank in range(size):
            hvd = types.SimpleNamespace(rank=lambda rank=rank: rank, size=lambda size=size: size)
            scope = {"hvd": hvd, "x": list(range(length)), "y": list(range(length))}
            exec("\n".join(lines), scope)
            assert scope["x"] == scope["y"]
            shares.append(scope["x"])
        assert {len(share) for share in shares} == {length // size}
        assert sorted(itertools.chain(*shares)) == list(range(length // size * size))
