# SPDX-License-Identifier: Apache-2.0
"""How much later than promised something may come in tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("given", "slack_s"),
    [({}, 30.0), ({"THOROUGH": "1"}, 2.0), ({"THOROUGH": "1", "SLACK_S": "31.5"}, 31.5), ({"SLACK_S": "1"}, 1.0)],
)
def test_the_slack_is_small_if_the_machine_is_ours_unless_it_is_given(given: dict[str, str], slack_s: float) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("THOROUGH", "SLACK_S")}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    code = "from support.extent import SLACK_S; print(SLACK_S)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **given}, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == slack_s
