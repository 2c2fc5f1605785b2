# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed pass with the backend hvd: one of 25, and all with THOROUGH=1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.extent import THOROUGH, later

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ranks", [2, *map(later, (3, 4))])
def test_pytorchs_own_tests_pass(ranks: int) -> None:
    for name in ("torch", "expecttest"):
        pytest.importorskip(name, reason=f"not run: {name} is not installed")
    words = [sys.executable, str(ROOT / "tools" / "try-torch-suite"), str(ranks)]
    done = subprocess.run(
        words + ([] if THOROUGH else ["--sample", "25"]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=1780,
    )
    ran = int(done.stdout.split(" tests ran")[0].split()[-1])
    assert done.returncode == 0 and ran >= (90 if THOROUGH else 3), done.stderr[-8000:]
