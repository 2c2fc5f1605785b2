# SPDX-License-Identifier: Apache-2.0
"""The examples' scripts and their data, for tests that run them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

__all__ = ["EXAMPLES", "mnist_folder"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def mnist_folder() -> str:
    """The folder of the MNIST files; skips the test if they are not there."""
    spec = importlib.util.spec_from_file_location("mnist", EXAMPLES / "common" / "mnist.py")
    assert spec is not None and spec.loader is not None
    mnist = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mnist)
    folder = os.environ.get("HVD_TEST_MNIST") or Path.home() / ".cache" / "hvd" / "mnist"
    if not mnist._complete(Path(folder)):
        pytest.skip("not run: the MNIST files are not in the cache; `make data` or HVD_TEST_MNIST=folder")
    return str(folder)
