# SPDX-License-Identifier: Apache-2.0
"""How many threads each rank of a host gets for its computations, if the user has not said so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from horovod.launcher.host.control_group import control_group

__all__ = ["VARIABLE", "chosen_threads", "usable_cores"]

VARIABLE = "OMP_NUM_THREADS"


def chosen_threads(environment: Mapping[str, str], ranks: int, root: Path = Path("/")) -> int | None:
    """For each of `ranks` on this host; None if the user has chosen, or one rank has the host alone.

    Without it, each rank would start as many threads as there are cores. `root` stands for / in tests.
    """
    if ranks < 2 or environment.get(VARIABLE):
        return None
    return max(1, usable_cores(root) // ranks)


def usable_cores(root: Path = Path("/")) -> int:
    """How many cores this process and its children may use at a time."""
    return max(1, int(min(len(os.sched_getaffinity(0)), _quota(root))))


def _quota(root: Path) -> float:
    """How many cores the control group of this process may use at a time."""
    group = control_group("cpu", root)
    quota = float("inf")
    if group is None:
        return quota
    for folder in [group.folder, *group.folder.parents]:
        with contextlib.suppress(OSError, ValueError):  # no such file, "max"
            if group.version == 2:
                limit, period = (folder / "cpu.max").read_text().split()
            else:
                limit, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            quota = min(quota, int(limit) / int(period)) if int(limit) > 0 else quota
        if folder == group.top:
            break
    return quota
