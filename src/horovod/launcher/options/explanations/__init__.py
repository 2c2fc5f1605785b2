# SPDX-License-Identifier: Apache-2.0
"""The text of each error code, and the pages of the documentation, for `horovodrun --explain`."""

from pathlib import Path

from horovod.launcher.options.explanations.table import EXPLANATIONS, Explanation, explain, list_of_codes

__all__ = ["EXPLANATIONS", "Explanation", "explain", "list_of_codes", "pages"]

_PAGES = Path(__file__).parents[3] / "pages"


def pages() -> dict[str, Path]:
    """The pages that are installed, by name; none where the package is used without being installed."""
    return {page.stem: page for page in sorted(_PAGES.glob("*.md")) if page.stem != "README"}
