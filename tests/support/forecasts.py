# SPDX-License-Identifier: Apache-2.0
"""A profile as horovodrun --profile writes it."""

from __future__ import annotations

from typing import Any

__all__ = ["GRADIENTS", "PROFILE"]

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
