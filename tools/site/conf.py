# SPDX-License-Identifier: Apache-2.0
"""Sphinx's configuration; tools/site runs Sphinx on the pages that stage.py makes."""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
_init = (HERE.parents[1] / "src" / "horovod" / "__init__.py").read_text()

project = "Horovod"
version = re.search(r'^__version__ = "(.*?)"', _init, re.MULTILINE)[1]
html_title = f"Horovod {version}"

extensions = ["myst_parser"]
myst_heading_anchors = 4  # links between pages name headings as GitHub does
myst_disable_syntax = ["html_inline", "html_block"]  # <rank> is a word of a text
smartquotes = False  # --flag keeps its dashes
highlight_language = "none"  # of code without a language: commands and output
maximum_signature_line_length = 72
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_theme_options = {"top_of_page_buttons": ["view"]}
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
templates_path = [str(HERE / "templates")]
html_search_scorer = str(HERE / "scorer.js")
html_copy_source = False  # tools/site writes page.md beside page.html
html_domain_indices = False
html_show_copyright = False
suppress_warnings = ["ref.python"]  # a type in a signature may be a class of several packages
