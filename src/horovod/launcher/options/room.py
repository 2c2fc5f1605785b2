# SPDX-License-Identifier: Apache-2.0
"""Checks that this machine allows that many ranks: the limits of the system, before anything is started.

A rank is at least one process. More ranks than a limit allows, beside what runs already, cannot run, whatever they do;
whether as many as it allows can is for the user to decide.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from horovod.core.wording import counted
from horovod.launcher.host.control_group import control_group

__all__ = ["NoRoomError", "allow_open_files", "check_room"]

_OUTPUTS = 2  # stdout and stderr: a descriptor of the agent for each
# A process with one of these capabilities is not held to RLIMIT_NPROC.
_CAP_SYS_ADMIN = 1 << 21
_CAP_SYS_RESOURCE = 1 << 24


class NoRoomError(ValueError):
    """This machine does not allow as many ranks as were asked for."""


class _Limit(NamedTuple):
    ranks: int
    why: str
    hint: str


def check_room(ranks: int, root: Path = Path("/")) -> None:
    """Raises NoRoomError if the system does not allow `ranks` on this machine. `root` stands for / in tests."""
    lowest = min(_limits(root), key=lambda limit: limit.ranks, default=None)
    if lowest is not None and ranks > lowest.ranks:
        raise NoRoomError(
            f"{counted(ranks, 'rank')} on this machine were asked for, but it allows at most {lowest.ranks}: "
            f"{lowest.why}\nhint: start fewer ranks, or raise the limit: {lowest.hint}"
        )


def allow_open_files(hosts: int, ranks: int) -> None:
    """Raises this process' soft limit for a job of that size, as far as the system lets it.

    A host needs pipes and a line, a rank a connection to the rendezvous. Ranks of this machine inherit the limit.
    """
    needed = 64 + 8 * hosts + 2 * ranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard)
        )


def _limits(root: Path) -> Iterator[_Limit]:
    for name in ("pid_max", "threads-max"):
        number = _number(root / "proc/sys/kernel" / name)
        if number is not None:
            yield _Limit(number, f"kernel.{name} is {number}", f"sysctl kernel.{name}")
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors != resource.RLIM_INFINITY:
        why = f"each rank needs {_OUTPUTS} of the {descriptors} open files that one process may have (RLIMIT_NOFILE)"
        yield _Limit(descriptors // _OUTPUTS, why, "ulimit -n")
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes != resource.RLIM_INFINITY and not _is_privileged(root):
        used = _used_by_user(root)
        why = f"a user may have {counted(processes, 'process', 'processes')} (RLIMIT_NPROC){_of_which(used)}"
        yield _Limit(max(0, processes - used), why, "ulimit -u")
    yield from _limits_of_group(root)


def _limits_of_group(root: Path) -> Iterator[_Limit]:
    """A container and a batch job are control groups; those around it count as well."""
    group = control_group("pids", root)
    if group is None:
        return
    for folder in (group.folder, *group.folder.parents):
        number = _number(folder / "pids.max")
        if number is not None:
            used = _number(folder / "pids.current") or 0
            why = f"its control group may have {counted(number, 'process', 'processes')}{_of_which(used)}"
            yield _Limit(max(0, number - used), why, str(folder / "pids.max"))
        if folder == group.top:
            return


def _of_which(used: int) -> str:
    return f", of which {used} {'is' if used == 1 else 'are'} in use" if used else ""


def _used_by_user(root: Path) -> int:
    """Processes of this user, with their threads, as the kernel counts them."""
    user = str(os.getuid())
    used = 0
    for status in root.glob("proc/[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if fields.get("Uid", "").split()[:1] == [user]:
                used += int(fields.get("Threads", "1"))
    return used


def _number(file: Path) -> int | None:
    """None if there is no such file, or no limit in it."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _is_privileged(root: Path) -> bool:
    try:
        text = (root / "proc/self/status").read_text()
    except OSError:
        return False
    user = re.search(r"^Uid:\s+(\d+)", text, re.MULTILINE)
    capabilities = re.search(r"^CapEff:\s+([0-9a-f]+)", text, re.MULTILINE)
    if user is not None and user[1] == "0":
        return True
    return capabilities is not None and bool(int(capabilities[1], 16) & (_CAP_SYS_ADMIN | _CAP_SYS_RESOURCE))
