# SPDX-License-Identifier: Apache-2.0
"""The pages of the site as Markdown: those of the repository with links of the site, and those made from tables.

docs/README.md is the first page. Each of its headings with a table of pages is a chapter; a page that no chapter names
fails the build.
"""

from __future__ import annotations

import dataclasses
import os.path
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import command_files
from reference import AS_HVD, MODULES, Entry, Reference

from horovod.launcher.options.explanations import EXPLANATIONS, Explanation
from horovod.settings import rows

ROOT = Path(__file__).resolve().parents[2]
TABLES = runpy.run_path(str(ROOT / "tools" / "pages"))
# Where pages of other folders are on the site; a folder's README.md is its index.md.
PLACES = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/records/README.md": "records.md",
    "benchmarks/records": "records.md",
    "examples": "examples.md",
    "docs/README.md": "index.md",
}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".ipynb": "json", ".md": "markdown"}
PAGE_TABLE = "| page | what it answers |"
# Rows that only the site has, by the chapter they end.
ONLY_HERE = {
    "Frameworks": ["| [Examples](examples.md) | whole scripts for each framework |"],
    "Reference": [
        "| [API](api/index.md) | each public name of each package: its signature and what it does |",
        "| [Flags](flags.md) | every flag of `horovodrun` |",
    ],
}
# Parts of pages that the site has in another form.
IN_PLACE_OF = {
    "overview.md": {"# Horovod\n": "# Overview\n"},
    "index.md": {
        """| `python -c "import horovod.core as hvd; help(hvd.alltoall)"` |""": "| [API](api/horovod.torch.md) |",
        """\
`make docs` builds this documentation as a site in `build/docs`. There, this chapter also has the signature of every
public name, every flag of `horovodrun`, and a search.

""": "",
    },
}
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_NAMED_LINK = re.compile(r"\[([^]]+)\]\(([^()\s#]+)\.md[^()\s]*\)")


@dataclasses.dataclass(frozen=True)
class Page:
    text: str  # for Sphinx
    plain: str = ""  # for readers of Markdown, if it differs

    @property
    def markdown(self) -> str:
        return self.plain or self.text


def _outside(text: str) -> Page:
    """A page that another page lists. In the tree of chapters, which each page shows, it would cost time."""
    return Page(f"---\norphan: true\n---\n\n{text}", text)


class Site:
    """`pages` by their path on the site; `files` that pages show or link to, by theirs; `api` by module."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.files: dict[str, Path] = {}
        self.chapters: list[tuple[str, dict[str, str]]] = []  # the names of pages by their path without .md
        reference = Reference()
        self.api = {module: (reference.text_of(module), reference.entries(module)) for module in MODULES}
        sources = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
        sources += [source for source in PLACES if source.endswith(".md") and not source.startswith("docs/")]
        for source in sources:
            text = self._linked(source, (ROOT / source).read_text())
            for part, here in IN_PLACE_OF.get(_place(source), {}).items():
                assert part in text, f"{source} does not have: {part}"
                text = text.replace(part, here, 1)
            self.pages[_place(source)] = _outside(text) if source.startswith("docs/decisions/0") else Page(text)
        self._add_tables()
        self._add_examples()
        self._add_api()
        self._add_chapters()

    # Links

    def _linked(self, source: str, text: str) -> str:
        """The text with links from the page's place on the site."""
        here = _place(source)

        def replaced(found: re.Match[str]) -> str:
            target, mark, anchor = found[1].partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(source), target))
            if not target or "://" in target or not (ROOT / path).exists():
                return found[0]
            if path == "docs/troubleshooting.md" and anchor:
                place, mark, anchor = f"errors/{anchor}.md", "", ""
            else:
                place = self._place_of_target(path)
            return f"]({os.path.relpath(place, os.path.dirname(here) or '.')}{mark}{anchor})"

        return _LINK.sub(replaced, text)

    def _place_of_target(self, path: str) -> str:
        if path.endswith(".md") or path in PLACES:
            return _place(path)
        if Path(path).suffix in LANGUAGES:
            return self._shown(path)
        place = path.removeprefix("docs/")
        self.files[place] = ROOT / path
        return place

    def _shown(self, path: str) -> str:
        """A page that shows a file of the repository."""
        place = f"files/{path}.md"
        language = LANGUAGES.get(Path(path).suffix, "text")
        code = (ROOT / path).read_text()
        plain = f"# {path}\n\n`````{language}\n{code.rstrip()}\n`````\n"
        self.pages[place] = _outside(plain)
        return place

    # Pages that are made from tables

    def _add_tables(self) -> None:
        page = self.pages["troubleshooting.md"].text
        table = re.sub(r"\]\(#([a-z-]+)\)", r"](errors/\1.md)", page[: page.index("\n## ")])
        self.pages["troubleshooting.md"] = Page(table)
        for one in EXPLANATIONS:
            self.pages[f"errors/{one.code}.md"] = _outside(_error(one))
        self.pages["settings.md"] = Page(_settings(self.pages["settings.md"].text), self.pages["settings.md"].text)
        self.pages["flags.md"] = Page(
            _flags(_flag_directive, "```{program} horovodrun", "```", ""), _flags(_flag_plain)
        )

    def _add_examples(self) -> None:
        lines = ["# Examples", "", "Each folder has whole scripts. `horovodrun -np 2 python train.py` starts one.", ""]
        for path in sorted((ROOT / "examples").rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and (path.suffix in LANGUAGES or path.suffix == ".prototxt"):
                lines.append(f"- [{name.removeprefix('examples/')}]({self._shown(name)})")
        self.pages["examples.md"] = Page("\n".join(lines) + "\n")

    def _add_api(self) -> None:
        rows = []
        for module, (text, entries) in self.api.items():
            self.pages[f"api/{module}.md"] = Page(
                _module(module, text, entries, _directive, f"```{{py:currentmodule}} {module}", "```", ""),
                _module(module, text, entries, _plain),
            )
            rows.append(f"| [{module}]({module}.md) | {' '.join(text.split(chr(10) * 2)[0].split())[:190]} |")
        lines = [
            "# API",
            "",
            "The public names of each package, made from their docstrings. `help(hvd.alltoall)` shows the same.",
            "",
            "| package | what it has |",
            "|---|---|",
            *rows,
            "",
        ]
        plain = "\n".join(lines)
        self.pages["api/index.md"] = Page(plain + _toctree("", list(MODULES)), plain)

    # Chapters

    def _add_chapters(self) -> None:
        text = self.pages["index.md"].text
        for chapter, added in ONLY_HERE.items():
            begin, table = _table_of(text, chapter)
            text = text[: begin + len(table)] + "\n".join(added) + "\n" + text[begin + len(table) :]
        trees = []
        for chapter in re.findall(r"^## (.*)$", text, re.MULTILINE):
            if PAGE_TABLE in text[text.index(f"## {chapter}\n") :].split("\n## ")[0]:
                names = {page: name for name, page in _NAMED_LINK.findall(_table_of(text, chapter)[1])}
                self.chapters.append((chapter, names))
                trees.append(_toctree(chapter, [f"{name} <{page}>" for page, name in names.items()]))
        self.pages["index.md"] = Page(text + "".join(trees), text)

    def llms(self) -> str:
        """The site's index for language models: llmstxt.org."""
        first = self.pages["index.md"].markdown
        lines = [f"# {_title(first)}", "", f"> {_first_paragraph(first)}", ""]
        lines += ["[Every page in one file](llms-full.txt).", ""]
        for chapter, names in self.chapters:
            said = _answers(_table_of(first, chapter)[1])
            listed = (f"- [{name}]({page}.md): {said[page]}" for page, name in names.items())
            lines += [f"## {chapter}", "", *listed, ""]
        lines += ["## API", "", *(f"- [{module}](api/{module}.md)" for module in MODULES), ""]
        lines += ["## Errors", "", *(f"- [{one.code}](errors/{one.code}.md): {one.title}" for one in EXPLANATIONS)]
        return "\n".join(lines) + "\n"

    def llms_full(self) -> str:
        """Each page that llms.txt names."""
        paths = dict.fromkeys(_LINK.findall(self.llms()))
        return "\n\n".join(self.pages[path].markdown for path in paths if path in self.pages)


def _place(source: str) -> str:
    if source in PLACES:
        return PLACES[source]
    place = source.removeprefix("docs/")
    return re.sub(r"(^|/)README\.md$", r"\1index.md", place)


def _title(text: str) -> str:
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    assert found, text[:100]
    return found[1]


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[1].split())


def _answers(table: str) -> dict[str, str]:
    """By page: what its row of a chapter's table says of it. "the same" is the text of the row above."""
    found: dict[str, str] = {}
    last = ""
    for row in table.splitlines():
        links, _, text = row.strip("| ").partition(" | ")
        last = text if text != "the same" else last
        found.update((page, last) for _, page in _NAMED_LINK.findall(links))
    return found


def _table_of(text: str, chapter: str) -> tuple[int, str]:
    """Where the table of pages of a chapter begins, and the table."""
    begin = text.index(PAGE_TABLE, text.index(f"## {chapter}\n"))
    found = re.compile(r"(?:\|.*\n)+").match(text, begin)
    assert found
    return begin, found[0]


def _toctree(caption: str, pages: list[str]) -> str:
    captioned = [f":caption: {caption}"] if caption else []
    return "\n" + "\n".join(["```{toctree}", ":hidden:", *captioned, "", *pages, "```"]) + "\n"


def _error(one: Explanation) -> str:
    lines = [f"# {one.code}", "", *TABLES["explained"](one), "", "## You read", ""]
    lines += [f"- `{text.replace('`', '')}`" for text in one.messages]
    lines += ["", f"`horovodrun --explain {one.code}` says the same. [All errors](../troubleshooting.md)"]
    return "\n".join(lines) + "\n"


def _settings(page: str) -> str:
    """The page with an entry for each setting in place of the table's row, so that a search leads to it."""
    before, _, rest = page.partition(TABLES["SETTINGS_HEAD"])
    end = rest[rest.index("\n## ") :]
    lines = []
    for row in rows():
        default, key = TABLES["default_of"](row), TABLES["key_of"](row)
        facts = [f"Default: {default or 'none'}"]
        facts += [f"flag: {{option}}`horovodrun {row.flag}`"] if row.flag else []
        facts += [f"key: {key}"] if key else []
        lines += [f"```{{envvar}} {row.variable}", TABLES["meaning_of"](row), "", ", ".join(facts), "```", ""]
    return before + "\n".join(lines) + end


def _flags(shown: Callable[[list[str], list[str], str], list[str]], *begin: str) -> str:
    lines = [
        "# Flags of horovodrun",
        "",
        *begin,
        "Put them before the command: `horovodrun -np 4 python train.py`. [horovodrun](launcher.md) explains them.",
        "",
    ]
    parser = command_files.make_parser()
    for title, actions in command_files.groups(parser):
        lines += [f"## {title.capitalize()}", ""]
        for action in actions:
            meaning = (action.help or "") % {"prog": parser.prog}
            lines += shown(action.option_strings, command_files.values_of(action), meaning)
    return "\n".join(lines) + "\n"


def _flag_directive(names: list[str], values: list[str], meaning: str) -> list[str]:
    spelled = ", ".join(" ".join([name, *values]) for name in names)
    return [f"```{{option}} {spelled}", meaning, "```", ""]


def _flag_plain(names: list[str], values: list[str], meaning: str) -> list[str]:
    return [f"- `{', '.join(names)}`{''.join(f' `{value}`' for value in values)}: {meaning}"]


# The API


def _module(module: str, text: str, entries: list[Entry], shown: Callable[[Entry], Iterator[str]], *head: str) -> str:
    # A search for hvd.alltoall finds a name only if the title has the other word.
    title = f"{module} as hvd" if AS_HVD.fullmatch(module) else module
    lines = [f"# {title}", "", *head, text, ""]
    for title, kinds in ("Functions and classes", ("function", "class")), ("Constants", ("data",)):
        some = [one for one in entries if one.kind in kinds]
        lines += ["", f"## {title}", ""] if some else []
        for one in some:
            lines += shown(one)
    return "\n".join(lines) + "\n"


def _directive(one: Entry, depth: int = 5) -> Iterator[str]:
    fence = "`" * depth
    yield f"{fence}{{py:{one.kind}}} {one.name}{one.signature}"
    if one.value:
        yield f":value: {one.value}"
    yield ""
    yield one.text
    yield ""
    for member in one.members:
        yield from _directive(member, depth - 1)
    yield fence
    yield ""


def _plain(one: Entry, depth: int = 3) -> Iterator[str]:
    value = f" = {one.value}" if one.value else ""
    yield f"{'#' * depth} {one.name}"
    yield ""
    yield f"    {one.name}{one.signature}{value}"
    yield ""
    yield one.text
    yield ""
    for member in one.members:
        yield from _plain(member, depth + 1)
