# SPDX-License-Identifier: Apache-2.0
"""A profile as horovodrun --profile writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["GRADIENTS", "PROFILE", "undisturbed", "warnings_of"]

GRADIENTS: dict[str, Any] = {
    "name": ["b", "a"],
    "dtype": ["float32", "float32"],
    "bytes": [4000000, 400],
    "ready_ms": [[60.0, 59.0, 61.0], [0.0, 0.0, 0.0]],
}
PROFILE: dict[str, Any] = {
    "format": "horovod-profile",
    "version": 1,
    "name": "train",
    "device": "cpu",
    "busy_ranks": 2,
    "input_ms": {"median": 1.0, "p10": 1.0, "p90": 1.0},
    "forward_ms": {"median": 30.0},
    "backward_ms": {"median": 60.0},
    "update_ms": {"median": 10.0},
    "step_ms": [99.0, 101.0] * 10,
    "gradients": GRADIENTS,
}


def undisturbed(path: Path) -> str:
    """This file, as if the machine of the tests had done nothing else."""
    content = json.loads(path.read_text())
    assert 0 <= content["core_wait"] < 1
    path.write_text(json.dumps({**content, "core_wait": 0.0}))
    return str(path)


def warnings_of(stderr: str) -> list[str]:
    """But for what is said of a busy machine."""
    return [line for line in stderr.splitlines() if re.search("warning(?!: .* waited for a core)", line)]
