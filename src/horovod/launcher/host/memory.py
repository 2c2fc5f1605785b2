# SPDX-License-Identifier: Apache-2.0
"""Tells if the kernel's out-of-memory killer ended a process since the job began, by the kernel's counters."""

from __future__ import annotations

from pathlib import Path

from horovod.launcher.host.control_group import control_group

__all__ = ["IN_CGROUP", "NO_PROCESS", "ON_MACHINE", "UNKNOWN", "KillCounter"]

# Answers of `scope_of_kill`, which travel from agent to launcher.
IN_CGROUP = "cgroup"  # a process under the same memory limit as this one
ON_MACHINE = "machine"  # some process of this machine
NO_PROCESS = "none"
UNKNOWN = "unknown"  # the kernel shows no counter here


class KillCounter:
    """Counts from its construction, and each kill for one process only. `root` stands for / in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = {IN_CGROUP: _cgroup_file(root), ON_MACHINE: root / "proc/vmstat"}
        self._before = {scope: _count(file) for scope, file in self._files.items()}

    def scope_of_kill(self) -> str:
        """Where a kill was counted that explains the end of no other process yet."""
        known, found = False, ""
        for scope, before in self._before.items():
            now = _count(self._files[scope])
            if before is None or now is None:
                continue
            known = True
            if now > before:
                # The machine's counter has those of groups, too.
                self._before[scope] = before + 1
                found = found or scope
        return found or (NO_PROCESS if known else UNKNOWN)


def _cgroup_file(root: Path) -> Path | None:
    """The file with this process' own counter."""
    group = control_group("memory", root)
    return group and group.folder / ("memory.oom_control" if group.version == 1 else "memory.events")


def _count(file: Path | None) -> int | None:
    try:
        text = file.read_text() if file is not None else ""
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None
