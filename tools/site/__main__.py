# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation site into build/docs; `make docs` runs it. A warning of Sphinx is an error.

python tools/site
"""

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "src"), str(ROOT / "tools")]  # nothing is installed

from stage import Site  # noqa: E402

SOURCE, TARGET = ROOT / "build" / "docs-source", ROOT / "build" / "docs"


def main() -> int:
    site = Site()
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.rmtree(TARGET, ignore_errors=True)
    for path, page in site.pages.items():
        _write(SOURCE / path, page.text)
    for path, file in site.files.items():
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, SOURCE / path)
    conf = str(Path(__file__).resolve().parent)
    code = sphinx(
        ["-q", "-W", "--keep-going", "-j", "2", "-c", conf, "-d", f"{TARGET}-trees", str(SOURCE), str(TARGET)]
    )
    if code:
        return code
    for path, page in site.pages.items():
        _write(TARGET / path, page.markdown)
    for path, file in site.files.items():  # to which page.md links
        (TARGET / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, TARGET / path)
    _write(TARGET / "llms.txt", site.llms())
    _write(TARGET / "llms-full.txt", site.llms_full())
    print(f"{len(site.pages)} pages: {TARGET / 'index.html'}")
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
