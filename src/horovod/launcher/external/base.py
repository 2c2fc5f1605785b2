# SPDX-License-Identifier: Apache-2.0
"""The job of another launcher, and its command line."""

from __future__ import annotations

import dataclasses
import re
import shlex

from horovod.launcher.job.spec import OF_THIS_MACHINE
from horovod.launcher.options.usage import UsageError

__all__ = ["ExternalCommand", "ExternalJob"]

# Functions of a shell, what says where a process is, secrets, and what mpirun itself sets for each process.
_NOT_FORWARDED = re.compile(
    r"BASH_FUNC_.*|.*CUDA_VISIBLE_DEVICES|_HOROVOD_SECRET_KEY|HOROVOD_SECRET_FILE|(OMPI|PMIX|PMI|PRTE|MPI)_.*|_|PWD|SHLVL"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class ExternalCommand:
    """`hosts`: where its ranks run."""

    command: list[str]
    environment: dict[str, str]
    hosts: tuple[str, ...] = ()

    def shown(self) -> str:
        return shlex.join(self.command)


@dataclasses.dataclass(frozen=True)
class ExternalJob:
    """`shares`: how many ranks each host gets, in order. `arguments` and `binding` as the user wrote them."""

    command: list[str]
    shares: dict[str, int]
    environment: dict[str, str]
    arguments: str = ""
    binding: str = ""
    interfaces: str = ""
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    output_directory: str | None = None
    timestamps: bool = False
    tcp: bool = False

    @property
    def size(self) -> int:
        return sum(self.shares.values())

    def ssh_arguments(self) -> str:
        port = ["-p", str(self.ssh_port)] if self.ssh_port is not None else []
        return shlex.join(port + (["-i", self.ssh_identity_file] if self.ssh_identity_file is not None else []))

    def forwarded(self) -> list[str]:
        """The names of the variables that the ranks get."""
        names = set(self.environment) - OF_THIS_MACHINE
        return sorted(name for name in names if _NAME.fullmatch(name) and not _NOT_FORWARDED.fullmatch(name))

    def words(self, text: str) -> list[str]:
        """The words of --mpi-args or --binding-args. Raises UsageError."""
        try:
            return shlex.split(text)
        except ValueError as error:
            raise UsageError(f"{text!r}: {error}") from None

    def equal_share(self, launcher: str) -> int:
        """How many ranks each host gets, if all get as many. Raises UsageError."""
        shares = set(self.shares.values())
        if len(shares) > 1:
            listed = ", ".join(f"{host}:{count}" for host, count in self.shares.items())
            raise UsageError(f"{launcher} needs the same number of ranks on each host, got {listed}")
        return shares.pop()
