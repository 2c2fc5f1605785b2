# SPDX-License-Identifier: Apache-2.0
"""Checks of a command line that need no process. Each raises UsageError."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from horovod.core.exceptions import NativeCoreError, StartError, text_of
from horovod.launcher.host.command import why_no_interpreter
from horovod.launcher.job.output import prepare_directory
from horovod.launcher.options.hosts import is_local
from horovod.launcher.options.usage import UsageError
from horovod.world.files.places import make_folder
from horovod.world.files.whole import check_writable
from horovod.world.network import interface_address, own_addresses

__all__ = [
    "check_command",
    "check_identity_file",
    "check_interface",
    "check_is_reachable",
    "check_no_mpi",
    "check_not_by_mpi",
    "check_folder_name",
    "check_file_name",
    "check_files_differ",
    "check_profile",
    "check_timeline",
    "check_transport",
    "make_directory",
    "output_directory",
    "report_directory",
    "working_directory",
]


def working_directory() -> str:
    """Where the ranks start, on all hosts."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working directory, in which the ranks start, cannot be used: {error.strerror}\n"
            "hint: was it removed or renamed? Change to a folder that exists"
        ) from None


def check_no_mpi(controller: str, cpu_operations: str) -> None:
    """For ranks that horovodrun itself starts: MPI would take each for a job of its own."""
    for variable, value in (("HOROVOD_CONTROLLER", controller), ("HOROVOD_CPU_OPERATIONS", cpu_operations)):
        if value.strip().lower() == "mpi":
            raise UsageError(
                f"{variable}=mpi needs ranks that mpirun starts\nhint: horovodrun --mpi, or unset {variable}"
            )


def check_not_by_mpi(transport: str) -> None:
    """For an elastic job."""
    if transport == "auto":
        return
    from horovod.world.communicators import BY_MPI  # opens the native core, as in check_transport

    if transport in BY_MPI:
        raise UsageError(
            f"HOROVOD_TRANSPORT={transport} cannot be used in elastic jobs: MPI cannot replace a lost process\n"
            "hint: unset HOROVOD_TRANSPORT"
        )


def check_interface(names: str) -> None:
    if not names:
        return
    try:
        interface_address(names)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_is_reachable(hosts: Sequence[str], interface: str) -> None:
    """Checks that ranks of other machines have an address at which they may meet those of this one."""
    if not interface and not own_addresses() and not all(map(is_local, hosts)):
        raise UsageError(
            "this host has no network interface with an address at which other hosts could reach it\n"
            "hint: --network-interface names one, lo for example if it has such an address"
        )


def check_identity_file(name: str | None) -> None:
    if name is not None and not os.access(name, os.R_OK):
        raise UsageError(f"--ssh-identity-file {name}: there is no such file, or it cannot be read")


def check_command(command: str, environment: Mapping[str, str]) -> None:
    path = environment.get("PATH", os.defpath)
    found = shutil.which(command, path=path)
    if found is not None:
        why, hint = why_no_interpreter(found)
        if why:
            raise UsageError(f"{why}\nhint: {hint}", 126)
        return
    if os.sep in command and os.path.isdir(command):
        raise UsageError(f"{command} is a folder, not a program", 126)
    if os.path.isfile(command):
        hint = f"\nhint: horovodrun ... python {command}" if command.endswith(".py") else ""
        raise UsageError(f"{command} is not executable{hint}", 126)
    if " " in command.strip():
        raise UsageError(
            f"command not found: {command!r}\nhint: give the command as words, without quotes around all of it: "
            f"horovodrun ... {command}",
            127,
        )
    raise UsageError(f"command not found: {command}", 127)


def check_transport(transport: str) -> None:
    if transport == "auto":
        return
    from horovod.world import communicators  # opens the native core, which the launcher needs for nothing else

    try:
        communicators.check(transport)
    except (StartError, NativeCoreError) as error:
        raise UsageError(text_of(error)) from None


def check_timeline(name: str) -> None:
    """The ranks would find out seconds later, each with a traceback."""
    if name and name.upper() != "DYNAMIC":
        _check_file("--timeline-filename", name, in_place=True)


def check_profile(name: str, hosts: Sequence[str], is_elastic: bool) -> None:
    """hosts: those of the ranks. Its ranks train apart: the job must be made for that."""
    if not name:
        return
    if is_elastic:
        raise UsageError("--profile is not for elastic jobs: their workers come and go\nhint: leave --min-np out")
    if len(set(hosts)) > 1:
        raise UsageError(
            f"--profile records the ranks of one host, these are on {len(set(hosts))}\n"
            "hint: horovodrun -np 1 --profile FILE, or as many ranks as this host runs"
        )
    _check_file("--profile", name, in_place=False)


def _check_file(flag: str, name: str, *, in_place: bool) -> None:
    try:
        check_writable(name, in_place=in_place)
    except OSError as error:
        raise UsageError(
            f"{flag} {name}: {error.strerror}\nhint: give a file in a folder that exists and can be written to"
        ) from None


def output_directory(name: str | None, size: int) -> Path | None:
    """Makes the folder, with one for each rank."""
    if name is None:
        return None
    with _folder_of_output(name):
        prepare_directory(Path(name), size)
    return Path(name)


def check_folder_name(flag: str, name: str | None) -> None:
    """Pathlib would take the working folder."""
    if name == "":
        raise UsageError(f"{flag} got an empty name\nhint: give the name of a folder")


def check_file_name(flag: str, name: str | None) -> None:
    """It would be as if the flag were not given."""
    if name == "":
        raise UsageError(f"{flag} got an empty name\nhint: give the name of a file")


def check_files_differ(read: Mapping[str, str | None], written: Mapping[str, str | None]) -> None:
    """Files and folders by their flag: nothing that is written may be another one of these."""
    seen: dict[str, str] = {}
    for flag, name in (*read.items(), *written.items()):
        other = seen.setdefault(os.path.realpath(name), flag) if name else flag
        if other != flag and flag in written:
            raise UsageError(f"{name} is given twice, as {other} and as {flag}\nhint: give another file")


def report_directory(name: str) -> Path:
    """Makes the folder, which has to be empty: parts of two jobs in one would mislead."""
    folder = Path(name).absolute()
    hint = "hint: it names a new folder for the report"
    try:
        make_folder(folder)
        is_empty = not any(folder.iterdir())
        check_writable(folder / "job.json")
    except OSError as error:
        raise UsageError(f"--report {name}: {error.strerror}\n{hint}") from None
    if not is_empty:
        raise UsageError(f"--report {name}: the folder holds files already\n{hint}")
    return folder


def make_directory(name: str) -> None:
    """Makes the folder alone, for another launcher."""
    with _folder_of_output(name):
        make_folder(name)


@contextlib.contextmanager
def _folder_of_output(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"--output-filename {name}: {error.filename}: {error.strerror}\n"
            "hint: it names a folder, in which each rank gets one of its own"
        ) from None
