# SPDX-License-Identifier: Apache-2.0
"""Checks whether a host can do any work: its GPUs, its folder for temporary files, its clock and its memory.

Only elastic jobs ask: they can go on without such a host, and ask it again later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from horovod.core.wording import on_one_line
from horovod.launcher.host.control_group import control_group

__all__ = ["problems"]

_LEAST_MEMORY_BYTES = 256 << 20  # Python, a framework and a small model
_TRIAL_BYTES = 1 << 20
_CLOCK_S = 300.0  # as Kerberos
_NVIDIA_SMI_S = 15.0  # without persistence it starts each GPU anew; one that hangs makes it hang, too
_LOST_GPU = ("unable to determine the device handle", "gpu is lost", "fallen off the bus")  # in its words

Problem = tuple[str, str]


def problems(launchers_time_s: float, temporary: str = "", root: Path = Path("/")) -> list[Problem]:
    """Pairs of a text and a hint. `temporary`: the workers' TMPDIR. `root` stands for / in tests.

    Blocks for 15 s at most, if a GPU hangs.
    """
    return [*_of_gpus(), *_of_temporary_files(temporary), *_of_clock(launchers_time_s), *_of_memory(root)]


def _of_gpus() -> Iterator[Problem]:
    """The failed GPUs that nvidia-smi reports. Anything else is not a problem: the job may need none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen([command, "--list-gpus"], stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        except OSError:  # a file of that name that is not a program
            return
        try:
            process.wait(_NVIDIA_SMI_S)
        except subprocess.TimeoutExpired:
            process.kill()  # and is not waited for: it may be inside the driver
            yield (
                f"has GPUs that hang: nvidia-smi gave no answer within {_NVIDIA_SMI_S:g} s",
                "look there with nvidia-smi",
            )
            return
        said.seek(0)
        for line in said.read().decode(errors="replace").splitlines():
            if any(words in line.lower() for words in _LOST_GPU):
                yield f"has a GPU that has failed: {line.strip()}", "look there with nvidia-smi and dmesg"


def _of_temporary_files(folder: str) -> Iterator[Problem]:
    try:
        with tempfile.TemporaryFile(dir=folder if os.path.isdir(folder) else None) as file:
            file.write(bytes(_TRIAL_BYTES))
    except OSError as error:
        where = folder if os.path.isdir(folder) else tempfile.tempdir or ""
        hint = "free space in that folder, make it writable, or set TMPDIR to another one"
        yield f"cannot write temporary files in {on_one_line(where)}: {error.strerror}", hint


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
    """The memory that the kernel would give up first, though it counts as used."""
    words = [line.split() for line in (folder / "memory.stat").read_text().splitlines()]
    return sum(int(value) for name, value in words if name in ("inactive_file", "total_inactive_file"))
