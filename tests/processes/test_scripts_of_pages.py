# SPDX-License-Identifier: Apache-2.0
"""The whole scripts in README.md and docs run as the pages say, and print what the pages show."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.jobs import run_job
from support.pages import Script, scripts

SCRIPTS = scripts()
_FRACTION = re.compile(r"\d+\.\d+")


def test_the_first_pages_that_people_read_have_whole_scripts() -> None:
    assert {"README.md", "docs/quickstart.md"} <= {script.page for script in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.page)
def test_a_script_runs_and_prints_what_its_page_shows(tmp_path: Path, script: Script) -> None:
    if "import torch" in script.code:
        pytest.importorskip("torch", reason="not run: torch is not installed")
    (tmp_path / script.file).write_text(script.code)
    done = run_job(tmp_path, "-np", str(script.ranks), [sys.executable, script.file], env={"OMP_NUM_THREADS": "1"})
    assert done.code == 0, done.stderr
    if script.printed:  # the last digits of a loss are the framework's, the lines' order is nobody's
        shown, printed = (
            sorted(_FRACTION.sub("0.0", line) for line in lines) for lines in (script.printed, done.stdout.splitlines())
        )
        assert printed == shown
