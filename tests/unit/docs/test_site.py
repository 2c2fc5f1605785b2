# SPDX-License-Identifier: Apache-2.0
"""The documentation site before Sphinx makes HTML of it: pages, links, entries for a search, and the API.

`make docs` checks the rest: a warning of Sphinx is an error there. test_site_in_browser.py looks at the pages.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os.path
import re
import runpy
import types
from typing import Any

import pytest
from support.pages import PAGES, ROOT, blocks_of
from support.site import api, modules, site

from horovod.launcher.options.explanations import EXPLANATIONS
from horovod.launcher.options.flags import parser
from horovod.settings import rows

MODULES = modules()[1].MODULES
CODE = re.compile(r"^(@\w|import |from \w+ import|def |class |\w+ = \w+[.(])", re.MULTILINE)  # not indented
LISTED_BY_OTHERS = ("files/", "errors/", "api/horovod", "decisions/0")


def test_every_page_is_in_one_chapter() -> None:
    listed = [page for _, pages in site().chapters for page in pages]
    assert len(site().chapters) == 6 and len(set(listed)) == len(listed)
    own = {path.removesuffix(".md") for path in site().pages if not path.startswith(LISTED_BY_OTHERS)}
    assert own - set(listed) == {"index"}


def test_every_link_of_a_markdown_page_leads_to_a_page_or_a_file_of_the_site() -> None:
    staged = site()
    links = []
    for path, page in staged.pages.items():
        if not path.startswith("files/"):
            for target in re.findall(r"\]\(([^()\s#]+)[^()\s]*\)", page.markdown):
                links.append((path, target, os.path.normpath(os.path.join(os.path.dirname(path), target))))
    assert len(links) > 400
    local = [one for one in links if not one[1].startswith(("http:", "https:"))]
    assert [one for one in local if one[2] not in {*staged.pages, *staged.files}] == []


def test_the_first_page_of_each_chapter_has_a_picture() -> None:
    for chapter, pages in site().chapters:
        text = site().pages[f"{next(iter(pages))}.md"].text
        assert re.search(r"!\[[^]]+\]\([./]*images/\w+\.svg\)", text), chapter


def test_a_search_finds_each_setting_each_flag_and_each_error() -> None:
    pages = site().pages
    settings = re.findall(r"^```\{envvar\} (\w+)$", pages["settings.md"].text, re.MULTILINE)
    assert settings == [row.variable for row in rows()] and "HOROVOD_FUSION_THRESHOLD" in settings
    options = " ".join(re.findall(r"^```\{option\} (.*)$", pages["flags.md"].text, re.MULTILINE))
    flags = [name for action in parser()._actions if action.help != "==SUPPRESS==" for name in action.option_strings]  # noqa: SLF001
    assert len(flags) > 60 and [flag for flag in flags if not re.search(rf"{re.escape(flag)}(?=[ ,]|$)", options)] == []
    for one in EXPLANATIONS:
        text = pages[f"errors/{one.code}.md"].markdown
        assert text.startswith(f"# {one.code}\n\n**{one.title}.**") and all(action in text for action in one.actions)
        assert f"](errors/{one.code}.md)" in pages["troubleshooting.md"].text


def test_links_to_an_error_lead_to_its_page() -> None:
    assert "](../errors/start-mpi.md)" in site().pages["guides/slurm.md"].text
    assert "](errors/mismatch.md)" in site().pages["index.md"].text


def test_llms_txt_names_every_page_that_a_chapter_names() -> None:
    text = site().llms()
    assert text.startswith("# Horovod\n\n> Horovod trains one model on many processes and hosts.")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert {f"{page}.md" for _, pages in site().chapters for page in pages} <= set(links)
    assert set(links) - {"llms-full.txt"} <= set(site().pages)
    full = site().llms_full()
    assert all(f"# {row}" in full for row in ("Settings", "horovod.torch", "mismatch", "Slurm")) and "```{" not in full


def test_pictures_are_as_they_are_drawn() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "pictures"))["pictures"]()
    assert len(drawn) == 6
    for path, text in drawn.items():
        assert path.read_text() == text, "run tools/pictures"
        assert "prefers-color-scheme: dark" in text


def test_operations_have_the_tensors_of_their_framework_in_their_signatures() -> None:
    splits = "splits: {} | Sequence[int] | None = None"
    assert splits.format("Tensor") in api()["horovod.torch"]["alltoall"].signature
    assert splits.format("NDArray[Any]") in api()["horovod.core"]["alltoall"].signature
    assert "Rows beyond their sum go to no rank" in api()["horovod.torch"]["alltoall"].text


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented_and_code_is_indented(module: str) -> None:
    for one in api()[module].values():
        for text in (one.text, *(member.text for member in one.members)):
            assert text and not CODE.search(text), f"{module}.{one.name}: {text}"
    assert not CODE.search(site().api[module][0])


@pytest.mark.parametrize("module", [one for one in MODULES if not re.search("mxnet|ray|spark|lightning", one)])
def test_the_reference_has_the_names_and_signatures_that_python_sees(module: str) -> None:
    seen = importlib.import_module(module)
    public = {name for name in getattr(seen, "__all__", ()) if not name.startswith("_")}
    public = {name for name in public if not isinstance(getattr(seen, name), types.ModuleType)}
    lazy = {path.rpartition(".")[2] for path in modules()[1].LAZY if path.rpartition(".")[0] == module}
    assert not public or public | lazy == set(api()[module])
    for name, one in api()[module].items():
        value = getattr(seen, name)
        if one.kind == "function":
            assert parameters_of(one.signature) == list(inspect.signature(value).parameters), f"{module}.{name}"
        assert (one.kind == "class") == inspect.isclass(value) or one.kind == "data", f"{module}.{name}"


def parameters_of(signature: str) -> list[str]:
    arguments = ast.parse(f"def f{signature}: ...").body[0].args  # type: ignore[attr-defined]
    plain = [*arguments.posonlyargs, *arguments.args]
    starred = [one for one in (arguments.vararg,) if one]
    return [one.arg for one in [*plain, *starred, *arguments.kwonlyargs, *(one for one in (arguments.kwarg,) if one)]]


def test_names_and_keywords_of_horovod_in_the_pages_python_code_exist() -> None:
    """`hvd.NAME(keyword=...)`: of any package, since a page says which."""
    known: dict[str, list[Any]] = {}
    for entries in api().values():
        for name, one in entries.items():
            known.setdefault(name, []).append(one)
    submodules = {"elastic", "callbacks", "nnx"}
    used = 0
    for page in PAGES:
        for _, code in blocks_of(page):
            for node in ast.walk(ast.parse(code)):
                call = node if isinstance(node, ast.Call) else None
                target = call.func if call else node
                match target:
                    case ast.Attribute(value=ast.Name(id="hvd"), attr=name) if name not in submodules:
                        used += 1
                        assert name in known, f"{page.name}: hvd.{name}"
                        given = {keyword.arg for keyword in call.keywords if keyword.arg} if call else set()
                        taken = [set(parameters_of(one.signature)) for one in known[name] if one.signature]
                        loose = any("**" in one.signature for one in known[name])
                        assert loose or any(given <= one for one in taken) or not given, (
                            f"{page.name}: hvd.{name}({given})"
                        )
    assert used > 100
