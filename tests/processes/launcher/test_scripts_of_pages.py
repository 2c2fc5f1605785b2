# SPDX-License-Identifier: Apache-2.0
"""The whole scripts in README.md and docs run as the pages say, and print what the pages show."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.extent import later
from support.jobs import run_job
from support.pages import PAGES, ROOT, scripts_of

WITH_SCRIPTS = {
    "README.md",
    "docs/elastic.md",
    "docs/frameworks/jax.md",
    "docs/frameworks/numpy.md",
    "docs/process-sets.md",
    "docs/quickstart.md",
}
# tests/frameworks/mxnet/test_mxnet_examples.py and tests/schedulers, for environments of their own.
ELSEWHERE = {"docs/frameworks/mxnet.md", "docs/lightning.md"}
ELSEWHERE |= {"docs/ray.md", "docs/spark.md", "docs/spark-estimators.md"}
DAILY = [pytest.param("README.md", marks=pytest.mark.slow("scripts in PyTorch")), "docs/frameworks/numpy.md"]
_FRACTION = re.compile(r"\d+\.\d+")


def test_the_pages_with_whole_scripts_are_those_that_run_here() -> None:
    """A script that uses a name which nothing makes would not count as whole."""
    assert {str(page.relative_to(ROOT)) for page in PAGES if scripts_of(page)} == WITH_SCRIPTS | ELSEWHERE


@pytest.mark.parametrize(
    "page", [*DAILY, *map(later, sorted(WITH_SCRIPTS - {"README.md", "docs/frameworks/numpy.md"}))]
)
def test_a_script_runs_and_prints_what_its_page_shows(tmp_path: Path, page: str) -> None:
    for script in scripts_of(ROOT / page):
        for framework in ("torch", "jax", "optax"):
            if f"import {framework}" in script.code:
                pytest.importorskip(framework, reason=f"not run: {framework} is not installed")
        (tmp_path / script.file).write_text(script.code)
        env = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}  # torch's folder would stay in TMPDIR
        done = run_job(tmp_path, "-np", *script.ranks, [sys.executable, script.file], env=env)
        assert done.code == 0, done.stderr
        if script.printed:
            assert _in_any_order(done.stdout.splitlines()) == _in_any_order(script.printed)


def _in_any_order(lines: list[str]) -> list[str]:
    """Without fractions: the digits of a loss are the framework's."""
    return sorted(_FRACTION.sub("0.0", line) for line in lines)
