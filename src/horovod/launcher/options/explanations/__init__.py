# SPDX-License-Identifier: Apache-2.0
"""The text of each error code, and the pages of the documentation, for `horovodrun --explain`."""

import textwrap
from pathlib import Path

from horovod.launcher.options.explanations.table import EXPLANATIONS, Explanation

__all__ = ["EXPLANATIONS", "Explanation", "explain", "list_of_codes", "pages"]

_PAGES = Path(__file__).parents[3] / "pages"
_WIDTH = 100
_BY_CODE = {one.code: one for one in EXPLANATIONS}


def explain(code: str) -> str:
    """The story behind a code, for a terminal. Raises KeyError for a code that does not exist."""
    one = _BY_CODE[code]
    lines = [f"{one.code}: {one.title}", "", f"You get: {one.comes_as}", ""]
    lines += ["You read, among other words:", *(f"    {message}" for message in one.messages), ""]
    lines += ["Why", *_indented(one.why, ""), "", "What to do"]
    for action in one.actions:
        lines += _indented(action, "- ")
    return "\n".join(lines)


def list_of_codes() -> str:
    """All codes with their titles, for a terminal."""
    width = max(len(one.code) for one in EXPLANATIONS)
    return "\n".join(f"{one.code:{width}}  {one.title}" for one in EXPLANATIONS)


def _indented(text: str, mark: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"    {mark}",
        subsequent_indent="    " + " " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


def pages() -> dict[str, Path]:
    """The pages that are installed, by name; none where the package is used without being installed."""
    return {page.stem: page for page in sorted(_PAGES.glob("*.md")) if page.stem != "README"}
