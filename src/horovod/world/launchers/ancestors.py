# SPDX-License-Identifier: Apache-2.0
"""The processes above this one. They tell of a launcher whose variables a wrapper has dropped (env -i, sudo, su)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["above", "launcher_above", "parent_of"]

_AGENTS = ("'horovod.launcher.host.agent'", "'horovod.launcher.host.remote_agent'")  # as python_command has it
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
_OF_MPI = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "orted", "prterun", "prted"}
_OF_MPI |= {"hydra_pmi_proxy", "hydra_bstrap_proxy"}


def parent_of(pid: int) -> int:
    """Raises OSError if it has ended."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def above() -> Iterator[int]:
    """The ancestors of this process, the parent first, as far as they can be seen."""
    pid = os.getppid()
    with contextlib.suppress(OSError):
        while pid > 1:
            yield pid
            pid = parent_of(pid)


def launcher_above() -> tuple[str, int] | None:
    """The nearest ancestor that belongs to a launcher: the launcher's name, and the process."""
    for pid in above():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if name := _launcher(words, Path(f"/proc/{pid}/comm").read_text().strip()):
                return name, pid
    return None


def _launcher(words: Sequence[str], comm: str) -> str:
    """Its name, by the words of its command line and the kernel's name of it; empty if it is another program."""
    if any(agent in word for agent in _AGENTS for word in words[1:3]):
        return "horovodrun"
    programs = {os.path.basename(word) for word in words[:2]}  # a script stands behind its interpreter
    if "torchrun" in programs or any(word in _TORCHRUN for word in words):
        return "torchrun"
    if programs.intersection(_OF_MPI):
        return "mpirun"
    return "srun" if comm == "slurmstepd" else ""
