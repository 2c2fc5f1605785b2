# SPDX-License-Identifier: Apache-2.0
"""Which control group of Linux this process is in, in both versions of control groups."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["ControlGroup", "control_group"]


class ControlGroup(NamedTuple):
    """`folder`: the group's own; those above it, up to `top`, limit it as well."""

    version: int
    top: Path
    folder: Path


def control_group(controller: str, root: Path = Path("/")) -> ControlGroup | None:
    """The group of this process; None if the kernel names none. `root` stands for / in tests.

    Version 2 has one hierarchy, version 1 one for each controller.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    parts = [line.split(":", 2) for line in lines]
    for _, controllers, path in parts:
        if controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
            return ControlGroup(1, top, top / path.lstrip("/"))
    for number, _, path in parts:
        if number == "0":
            top = root / "sys/fs/cgroup"
            return ControlGroup(2, top, top / path.lstrip("/"))
    return None
