# SPDX-License-Identifier: Apache-2.0
"""horovodrun: the command line. Reads it, checks what can be checked before anything is started, and runs the job."""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from horovod import __version__
from horovod.core import explanations
from horovod.core.exceptions import NativeCoreError, StartError, text_of
from horovod.core.network import interface_address
from horovod.core.settings import Row, SettingError, Settings, current_environment, environment_of, parse_flag, rows
from horovod.launcher import supervise
from horovod.launcher.hosts import Host, HostsError, assign_ranks, is_local, parse_hostfile, parse_hosts, ranks_by_host
from horovod.launcher.job import Job
from horovod.launcher.output import prepare_directory
from horovod.launcher.placement import PlacementOptions
from horovod.launcher.room import NoRoomError, check_room
from horovod.launcher.terminal import discard

__all__ = ["check", "main", "parse"]

# Horovod's other flags: known, so that a script that uses one is told, not misread. True: the flag takes a value.
_NOT_YET = {
    "--host-discovery-script": True,
    "--config-file": True,
    "--mpi": False,
    "--jsrun": False,
    "--mpi-args": True,
    "--tcp": False,
    "--binding-args": True,
    "--hierarchical-allreduce": False,
    "--hierarchical-allgather": False,
    "--torus-allreduce": False,
    "--autotune": False,
    "--autotune-log-file": True,
    "--autotune-warmup-samples": True,
    "--autotune-steps-per-sample": True,
    "--autotune-bayes-opt-max-samples": True,
    "--autotune-gaussian-process-noise": True,
    "--min-np": True,
    "--min-num-proc": True,
    "--max-np": True,
    "--max-num-proc": True,
    "--slots-per-host": True,
    "--slots": True,
    "--elastic-timeout": True,
    "--reset-limit": True,
    "--blacklist-cooldown-range": True,
    "--mpi-threads-disable": False,
    "--num-nccl-streams": True,
    "--gloo-timeout-seconds": True,
    "-prefix-timestamp": False,
    "--prefix-output-with-timestamp": False,
}


_LOOKUPS_AT_A_TIME = 32


class UsageError(Exception):
    """The command line cannot be run. `exit_code` as the shell would give."""

    def __init__(self, text: str, exit_code: int = 2) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\nhint: horovodrun --help lists the flags")


class _Listed(argparse.Action):
    """A flag that may be given several times, or with commas in its value."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, _[0] if before is None else f"{before},{_[0]}")


class _NotYet(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{_[2]} is not supported yet")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: returns the exit code of the job, 2 for a command line that cannot be run."""
    _occupy_standard_streams()
    environment = current_environment()
    try:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        if options.version:
            return _answer(__version__)
        if options.check_build:
            from horovod.launcher.check_build import check_build

            return _answer(check_build())
        if options.explain is not None:
            return _answer(_explanation(options.explain))
        job = _job(options, environment)
    except (UsageError, HostsError, NoRoomError, SettingError) as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, UsageError) else 2
    return supervise.run(job)


def _answer(text: str) -> int:
    """Prints what was asked for. Somebody who reads only its beginning, as `head` does, is content."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard(sys.stdout)
    return 0


def _explanation(code: str) -> str:
    if not code:
        return explanations.list_of_codes()
    try:
        return explanations.explain(code)
    except KeyError:
        raise UsageError(f"there is no code {code!r}\nhint: horovodrun --explain lists them") from None


def _occupy_standard_streams() -> None:
    """A daemon may start us with stdout or stderr closed: what is opened next would get their numbers."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def check(arguments: Sequence[str]) -> Job:
    """The job. Raises ValueError for a command line that main would not run, with what it would say."""
    try:
        return _job(parse(arguments), current_environment())
    except (UsageError, HostsError, NoRoomError, SettingError) as error:
        raise ValueError(str(error)) from None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, and `command`: everything from the first word that is no option, untouched. Raises UsageError."""
    parser = _parser()
    flags, command = _split(parser, arguments)
    options = parser.parse_args(flags)
    options.command = command[1:] if command[:1] == ["--"] else command
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="horovodrun",
        usage="horovodrun -np N [options] COMMAND [ARGUMENT ...]",
        description="Starts N processes of a training script, lets them find each other, and ends them as one.",
        epilog="example: horovodrun -np 2 python train.py --epochs 3",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "--num-proc", type=_count, metavar="N", help="number of processes (ranks)")
    add(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS",
        help="hosts to run on and how many ranks fit on each (1 if SLOTS is left out); default localhost:N",
    )
    add(
        "--hostfile",
        "-hostfile",
        metavar="FILE",
        help="the same from a file, one host a line: `name slots=N`, `name:N`, or a name alone for one rank",
    )
    add("-p", "--ssh-port", type=_port, metavar="PORT", help="port of sshd on the other hosts; default ssh's own")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh; default ssh's own")
    add("--output-filename", metavar="DIR", help="also write each rank's output to DIR/rank.<rank>/stdout and stderr")
    add("--verbose", action="store_true", help="say what is started and where, and how each rank ended")
    add("-cb", "--check-build", action="store_true", help="show what this build supports, and exit")
    add(
        "--explain",
        nargs="?",
        const="",
        metavar="CODE",
        help="say more about an error by the code in its last line, and exit; without a code, list all",
    )
    add("-v", "--version", action="store_true", help="show the version, and exit")
    add("--gloo", action="store_true", help="use Horovod's own transports; they are always used")
    add("--disable-cache", action="store_const", const=0, dest="cached_names", help=argparse.SUPPRESS)
    for flag, hides in (("--log-with-timestamp", False), ("--log-without-timestamp", True)):
        sentence = argparse.SUPPRESS if hides else "write warnings with the local time in front"
        add(flag, action="store_const", const=hides, dest="log_hide_time", help=sentence)
    settings = parser.add_argument_group("settings", "each is also an environment variable of the same meaning")
    for row in rows():
        if row.flag is not None:
            _add_setting(settings, row)
    for flag, takes_value in _NOT_YET.items():
        add(flag, action=_NotYet, nargs=None if takes_value else 0, dest="not_yet", help=argparse.SUPPRESS)
        if flag.startswith("--") and not takes_value and flag not in ("--mpi", "--jsrun", "--tcp"):
            add(f"--no-{flag[2:]}", action=_NotYet, nargs=0, dest="not_yet", help=argparse.SUPPRESS)
    return parser


def _add_setting(group: Any, row: Row) -> None:
    assert row.flag is not None
    text = f"{row.sentence} ({row.variable})"
    if isinstance(row.default, bool):
        group.add_argument(row.flag, dest=row.keyword, action="store_const", const=True, help=text)
        if row.flag.startswith("--"):
            is_off = row.flag.startswith("--no-")
            opposite = row.flag.replace("--no-", "--", 1) if is_off else row.flag.replace("--", "--no-", 1)
            group.add_argument(opposite, dest=row.keyword, action="store_const", const=False, help=argparse.SUPPRESS)
        return

    def value(given: str) -> Any:
        try:
            return parse_flag(row, given)
        except SettingError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    if row.keyword == "network_interface":
        names = [row.flag, f"{row.flag}s"]
        group.add_argument(*names, dest=row.keyword, action=_Listed, metavar="NAME", help=text)
        return
    metavar = "{" + ",".join(row.choices) + "}" if row.choices else row.flag.rpartition("-")[2].upper()
    group.add_argument(row.flag, dest=row.keyword, type=value, metavar=metavar, help=text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; expected a number from 1 to 65535")
    return int(text)


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; at least 1 is needed")
    return count


def _split(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The launcher's flags, and the user's command, in which argparse itself would look for our flags."""
    arguments = list(arguments)
    takes_value = {
        name: action.nargs != 0
        for action in parser._actions  # noqa: SLF001
        for name in action.option_strings
    }
    position = 0
    while position < len(arguments) and arguments[position].startswith("-") and arguments[position] != "--":
        if re.fullmatch("-np[0-9]+", arguments[position]):  # mpirun's users write it in one word
            arguments[position : position + 1] = ["-np", arguments[position][3:]]
        name, equals, _ = arguments[position].partition("=")
        if name not in takes_value:
            parser.error(f"there is no flag {name}")
        position += 2 if takes_value[name] and not equals else 1
    return arguments[:position], arguments[position:]


def _job(options: argparse.Namespace, environment: dict[str, str]) -> Job:
    """Everything that can be known to be wrong before a process is started is said here."""
    given = {row.keyword: getattr(options, row.keyword) for row in rows() if row.flag is not None}
    flags = {keyword: value for keyword, value in given.items() if value is not None}
    settings = dataclasses.replace(Settings.from_environment(environment), **flags)
    if unsupported := settings.unsupported():
        raise UsageError(unsupported)
    if options.num_proc is None:
        raise UsageError("-np, the number of processes, is missing\nhint: horovodrun -np 2 python train.py")
    if not options.command:
        raise UsageError("there is no command to run\nhint: horovodrun -np 2 python train.py")
    hosts = _hosts(options)
    here = zip(hosts, ranks_by_host(hosts, options.num_proc), strict=True)
    check_room(sum(count for host, count in here if is_local(host.name)))
    ranks = assign_ranks(hosts, options.num_proc)
    if settings.network_interface:
        try:
            interface_address(settings.network_interface)
        except ValueError as error:
            raise UsageError(str(error)) from None
    _check_ssh(options)
    _check_transport(settings.transport)
    _check_command(options.command[0], environment)
    _check_timeline(settings.timeline)
    return Job(
        command=options.command,
        ranks=ranks,
        environment={**environment, **environment_of(**flags)},
        placement=PlacementOptions(options.ssh_port, options.ssh_identity_file),
        start_timeout_s=settings.start_timeout_s,
        termination_grace_s=settings.termination_grace_s,
        # As the ranks notice each other.
        frozen_timeout_s=settings.lost_timeout_s if settings.pretend_hosts else settings.frozen_timeout_s,
        agent_timeout_s=settings.lost_timeout_s,
        network_interface=settings.network_interface,
        output_directory=_output_directory(options.output_filename, options.num_proc),
        verbose=options.verbose,
    )


def _hosts(options: argparse.Namespace) -> list[Host]:
    hosts = _listed_hosts(options)
    # Look-ups of names may take seconds each; the answers are kept.
    with concurrent.futures.ThreadPoolExecutor(_LOOKUPS_AT_A_TIME) as pool:
        list(pool.map(is_local, [host.name for host in hosts]))
    return hosts


def _listed_hosts(options: argparse.Namespace) -> list[Host]:
    if options.hosts and options.hostfile:
        raise UsageError("both -H and --hostfile were given: expected one")
    if options.hosts:
        return parse_hosts(options.hosts)
    if options.hostfile is None:
        return [Host("localhost", options.num_proc)]
    try:
        text = Path(options.hostfile).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text"
        raise UsageError(f"--hostfile {options.hostfile}: {why}") from None
    return parse_hostfile(text, options.hostfile)


def _check_ssh(options: argparse.Namespace) -> None:
    name = options.ssh_identity_file
    if name is not None and not os.access(name, os.R_OK):
        raise UsageError(f"--ssh-identity-file {name}: there is no such file, or it cannot be read")


def _check_command(command: str, environment: Mapping[str, str]) -> None:
    path = environment.get("PATH", os.defpath)
    if shutil.which(command, path=path) is not None:
        return
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


def _check_transport(transport: str) -> None:
    if transport == "auto":
        return
    from horovod.core import communicators  # opens the native core, which the launcher needs for nothing else

    try:
        communicators.check(transport)
    except (StartError, NativeCoreError) as error:
        raise UsageError(text_of(error)) from None


def _check_timeline(name: str) -> None:
    """The ranks would find out seconds later, each with a traceback."""
    if not name or name.upper() == "DYNAMIC":
        return
    path = Path(name)
    there = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise UsageError(
            f"--timeline-filename {name}: {error.strerror}\n"
            "hint: it names a file in a folder that exists and can be written to"
        ) from None
    if not there:
        path.unlink()


def _output_directory(name: str | None, size: int) -> Path | None:
    if name is None:
        return None
    directory = Path(name)
    try:
        prepare_directory(directory, size)
    except OSError as error:
        raise UsageError(
            f"--output-filename {name}: {error.filename}: {error.strerror}\n"
            "hint: it names a folder, in which each rank gets one of its own"
        ) from None
    return directory
