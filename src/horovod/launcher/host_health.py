# SPDX-License-Identifier: Apache-2.0
"""Whether a host can do any work: its GPUs, its folder for temporary files, its clock and its memory.

Only elastic jobs ask: they can go on without such a host, and ask it again later.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from horovod.launcher.control_group import control_group

__all__ = ["problems"]

_LEAST_MEMORY_BYTES = 256 << 20  # Python, a framework and a small model
_TRIAL_BYTES = 1 << 20
_CLOCK_S = 300.0  # as Kerberos
_NVIDIA_SMI_S = 5.0  # a GPU that hangs makes it hang, too

Problem = tuple[str, str]


def problems(launchers_time_s: float, root: Path = Path("/")) -> list[Problem]:
    """Pairs of a text and a hint. `root` stands for / in tests. Blocks for a few seconds at most."""
    return [*_of_gpus(root), *_of_temporary_files(), *_of_clock(launchers_time_s), *_of_memory(root)]


def _of_gpus(root: Path) -> Iterator[Problem]:
    """Those that the driver knows, and those that still answer."""
    known = len(list((root / "proc/driver/nvidia/gpus").glob("*")))
    command = shutil.which("nvidia-smi")
    if not known or command is None:
        return
    try:
        done = subprocess.run(
            [command, "--list-gpus"], capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield f"has GPUs that hang: nvidia-smi gave no answer within {_NVIDIA_SMI_S:g} s", "look there with nvidia-smi"
        return
    answering = done.stdout.count("GPU ")
    if done.returncode != 0 or answering < known:
        words = (done.stderr or done.stdout).strip().splitlines()
        said = f": {words[-1].strip()}" if words and done.returncode != 0 else ""
        yield f"has GPUs that have failed: {answering} of {known} answer{said}", "look there with nvidia-smi and dmesg"


def _of_temporary_files() -> Iterator[Problem]:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(_TRIAL_BYTES))
    except OSError as error:
        where = f" {tempfile.tempdir}" if tempfile.tempdir else ""
        yield (
            f"cannot write temporary files{where}: {error.strerror}",
            "free space in that folder, make it writable, or set TMPDIR to another one",
        )


def _of_clock(launchers_time_s: float) -> Iterator[Problem]:
    behind_s = launchers_time_s - time.time()
    if abs(behind_s) > _CLOCK_S:
        side = "behind" if behind_s > 0 else "ahead of"
        yield f"has a clock that is {abs(behind_s):.0f} s {side} this host's", "let a time service (NTP) set it"


def _of_memory(root: Path) -> Iterator[Problem]:
    free = _free_bytes(root)
    if free is not None and free < _LEAST_MEMORY_BYTES:
        hint = f"a worker needs at least {_LEAST_MEMORY_BYTES >> 20} MB; end what else runs there"
        yield f"has only {free >> 20} MB of free memory", hint


def _free_bytes(root: Path) -> int | None:
    """Of the machine, and of the control group's limit, whichever is less; None if the kernel does not say."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    group = control_group("memory", root)
    if group is not None:
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if group.version == 1
            else ("memory.max", "memory.current")
        )
        try:
            limit, used = ((group.folder / name).read_text().strip() for name in names)
            free += [int(limit) - int(used) + _file_cache_bytes(group.folder)] if limit != "max" else []
        except OSError:  # no limit there
            pass
    return min(free, default=None)


def _file_cache_bytes(folder: Path) -> int:
    """What the kernel would give up first, though it counts as used."""
    words = [line.split() for line in (folder / "memory.stat").read_text().splitlines()]
    return sum(int(value) for name, value in words if name in ("inactive_file", "total_inactive_file"))
