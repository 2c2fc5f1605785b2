# SPDX-License-Identifier: Apache-2.0
"""The example and the page for MXNet, as a user runs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from frameworks.test_examples import horovodrun, number_after
from processes.launcher import test_scripts_of_pages as pages
from support.examples import EXAMPLES, mnist_folder
from support.extent import THOROUGH

pytest.importorskip("mxnet", reason="not run: mxnet is not installed")


def test_mnist_trains(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLES / "09_mxnet_mnist" / "train.py"), "--data-dir", mnist_folder()]
    checkpoint = tmp_path / "lenet.params"
    amount, least = (("--epochs", "3"), 0.98) if THOROUGH else (("--epochs", "1", "--images", "30000"), 0.94)
    done = horovodrun("-np", "2", *script, "--checkpoint", str(checkpoint), *amount)
    assert done.returncode == 0, done.stderr
    assert "[0]<stdout>:ranks: 2," in done.stdout and "[1]<" not in done.stdout, "one rank talks for all"
    assert "(10000 images)" in done.stdout and checkpoint.exists()
    assert number_after(f"epoch {amount[1]}: test accuracy", done.stdout) >= least


def test_the_script_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    pages.test_a_script_runs_and_prints_what_its_page_shows(tmp_path, "docs/frameworks/mxnet.md")
