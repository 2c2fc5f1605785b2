# SPDX-License-Identifier: Apache-2.0
"""The profile of a job on one rank, which `horovodrun --profile` writes (gradients/recording.py), as a workload."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from horovod.gradients.recording import FEWEST_STEPS, FORMAT, VERSION
from horovod.simulate.errors import InputError, number, read_json, table
from horovod.simulate.step import Workload

__all__ = ["Profile", "read_profile"]


@dataclasses.dataclass(frozen=True)
class Profile:
    """A workload, and what the forecast says of its origin. device: cpu or gpu. busy_ranks: they ran side by side."""

    work: Workload
    device: str
    busy_ranks: int
    halves: bool


def read_profile(path: str) -> Profile:
    """Raises InputError, which names the field that does not fit."""
    content = read_json(path, FORMAT, VERSION)
    steps = content.get("step_ms")
    if not isinstance(steps, list) or len(steps) < FEWEST_STEPS:
        count = len(steps) if isinstance(steps, list) else 0
        raise InputError(
            f'{path}: field "step_ms": expected {FEWEST_STEPS} steps or more, got {count}\n'
            "hint: record a job that trains for longer"
        )
    gradients = table(content, "gradients", path)
    columns = [gradients.get(name) for name in ("name", "dtype", "bytes", "ready_ms")]
    lists = [column for column in columns if isinstance(column, list) and len(column) == len(columns[0] or ())]
    if len(lists) < len(columns):
        raise InputError(f'{path}: field "gradients": expected lists name, dtype, bytes and ready_ms of one length')
    _, dtypes, sizes, ready = lists
    if not sizes:
        raise InputError(
            f'{path}: field "gradients": it has none: the job made no backward pass\nhint: record training'
        )
    forward, backward = _milliseconds(content, "forward_ms", path), _milliseconds(content, "backward_ms", path)
    if backward == 0:
        raise InputError(f'{path}: field "backward_ms": the job made no backward pass\nhint: record training')
    update = _milliseconds(content, "update_ms", path)
    at = 1e-3 * (forward + np.array([row[0] for row in ready], np.float64))
    order = np.argsort(at, kind="stable")
    work = Workload(
        str(content.get("name", path)),
        at[order],
        np.array(sizes, np.float64)[order],
        1e-3 * max(forward + backward, 1e3 * float(at[order][-1])),
        1e-3 * update,
        tuple(float(step) for step in steps),
    )
    halves = any("16" in str(dtype) for dtype in dtypes)
    return Profile(work, "gpu" if content.get("device") == "gpu" else "cpu", int(content.get("busy_ranks", 1)), halves)


def _milliseconds(content: dict[str, Any], name: str, path: str) -> float:
    found = table(content, name, path)
    return number(found, "median", path)
