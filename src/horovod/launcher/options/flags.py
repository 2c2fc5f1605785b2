# SPDX-License-Identifier: Apache-2.0
"""horovodrun's flags, and where the user's command begins. Settings bring their own (settings/table.py)."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from horovod.launcher.host.command import assignments
from horovod.launcher.options.usage import UsageError
from horovod.launcher.placement import PLACEMENTS
from horovod.settings import Row, SettingError, parse_flag, rows
from horovod.settings.without_effect import WITHOUT_EFFECT, OldFlag

__all__ = ["is_elastic", "parse", "parser"]

_OTHERS_ARGUMENTS = ("--mpi-args", "--binding-args")  # their values are flags themselves, and begin with a dash
_ELASTIC_FLAGS = {
    "--max-np": "max_np",
    "--spares": "spares",
    "--slots-per-host": "slots_per_host",
    "--reset-limit": "reset_limit",
    "--blacklist-cooldown-range": "cooldown",
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, and `command`: everything from the first word that is not an option, untouched.

    `without_effect`: flags that do nothing here, each with the reason (without_effect.notes). Raises UsageError.
    """
    flags_of_horovodrun = parser()
    flags, command = _split(flags_of_horovodrun, arguments)
    options = flags_of_horovodrun.parse_args(flags)
    options.assigned, options.command = assignments(command[1:] if command[:1] == ["--"] else command)
    return options


def is_elastic(options: argparse.Namespace) -> bool:
    """True if the job may lose and gain workers. Raises UsageError for flags that only such a job has."""
    if options.min_np is not None or options.host_discovery_script is not None:
        return True
    for flag, name in _ELASTIC_FLAGS.items():
        if getattr(options, name) is not None:
            raise UsageError(
                f"{flag} is for elastic jobs\nhint: --min-np or --host-discovery-script makes this one elastic"
            )
    return False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse: `argument -x/--ex: 'y' is not ...`, and `argument --x: --x='y': expected ...`, which names it twice.
        message = re.sub(r"^argument (?:\S+: (?=-))?", "", message)
        raise UsageError(f"{message}\nhint: horovodrun --help lists the flags")


class _Listed(argparse.Action):
    """A flag that may be given several times, or with commas in its value."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, _[0] if before is None else f"{before},{_[0]}")


def parser() -> argparse.ArgumentParser:
    """The flags, from which --help, the manual page and the completions are made."""
    made = _Parser(
        prog="horovodrun",
        usage="horovodrun -np N [options] COMMAND [ARGUMENT ...]",
        description="Starts N processes of a training script, lets them find each other, and ends them as one.",
        epilog="commands: horovodrun jobs lists your running jobs; horovodrun top shows one; horovodrun stacks prints "
        "where its ranks are. Example: horovodrun -np 2 python train.py --epochs 3",
        allow_abbrev=False,
    )
    made.set_defaults(without_effect=[])
    _add_general(made)
    _add_hosts(made.add_argument_group("hosts"))
    _add_elastic(made.add_argument_group("elastic jobs", "whose workers may leave and join while they train"))
    _add_controllers(made.add_argument_group("who starts the processes"))
    settings = made.add_argument_group("settings", "each is also an environment variable of the same meaning")
    for row in rows():
        if row.flag is not None:
            _add_setting(settings, row)
    for old in WITHOUT_EFFECT:
        _add_old(made, old)
    return made


def _add_general(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-np",
        "--num-proc",
        type=_count,
        metavar="N",
        help="number of processes (ranks); inside an allocation of a batch system default all of its slots",
    )
    add("--config-file", metavar="FILE", help="YAML with settings; a flag wins over it")
    add("--output-filename", metavar="DIR", help="also write each rank's output to DIR/rank.<rank>/stdout and stderr")
    add(
        "--report",
        metavar="DIR",
        help="write timeline, counters, output, settings and versions into a new folder, to attach to a bug report",
    )
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        dest="prefix_timestamp",
        help="put the local time in front of each line of output",
    )
    add("--no-prefix", action="store_true", help="print the ranks' lines without rank and stream in front")
    add(
        "--only-rank",
        type=_rank,
        metavar="RANK",
        help="show the output of this rank alone (in elastic jobs: worker); --output-filename keeps that of all",
    )
    add(
        "--summary",
        action="store_const",
        const=True,
        help="say at the end how long ranks waited for each other and for data, and who was slow; default for jobs of "
        "more than a minute, unless --no-summary",
    )
    add("--top", action="store_true", help="show the ranks while the job runs, as `horovodrun top` does")
    add("--no-summary", action="store_const", const=False, dest="summary", help=argparse.SUPPRESS)
    add("--verbose", action="store_true", help="say what is started and where, and how each rank ended")
    add("-cb", "--check-build", action="store_true", help="show what this build supports, and exit")
    add(
        "--explain",
        nargs="?",
        const="",
        metavar="CODE",
        help="explain an error by the code in its last line, or show a page of the documentation, and exit; without a "
        "value, list all codes and pages",
    )
    add(
        "--drill",
        action="store_true",
        help="try the hosts with small jobs, instead of a command: links, clocks, memory, GPUs, lost and late ranks",
    )
    add("-v", "--version", action="store_true", help="show the version, and exit")
    add("--disable-cache", action="store_const", const=0, dest="cached_names", help=argparse.SUPPRESS)
    for flag, hides in (("--log-with-timestamp", False), ("--log-without-timestamp", True)):
        sentence = argparse.SUPPRESS if hides else "write warnings with the local time in front"
        add(flag, action="store_const", const=hides, dest="log_hide_time", help=sentence)


def _add_hosts(group: Any) -> None:
    group.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS",
        help="hosts to run on and how many ranks fit on each (1 if SLOTS is left out); default those of the batch "
        "system's allocation, or else localhost:N",
    )
    group.add_argument(
        "--hostfile",
        "-hostfile",
        metavar="FILE",
        help="the same from a file, one host a line: `name slots=N`, `name:N`, or a name alone for one rank",
    )
    group.add_argument(
        "-p", "--ssh-port", type=_port, metavar="PORT", help="port of sshd on the other hosts; default ssh's own"
    )
    group.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh; default ssh's own")
    group.add_argument(
        "--start-with",
        choices=[placement.name for placement in PLACEMENTS if placement.remote],
        help="how other hosts are reached; default the batch system's own way inside an allocation, or else ssh",
    )


def _add_elastic(group: Any) -> None:
    add = group.add_argument
    add(
        "--min-np",
        "--min-num-proc",
        type=_count,
        metavar="N",
        help="train on as long as N processes are there; default -np. Makes the job elastic",
    )
    add(
        "--max-np",
        "--max-num-proc",
        type=_count,
        metavar="N",
        help="never train with more processes than this; default one in every slot",
    )
    add(
        "--spares",
        type=_count,
        metavar="N",
        help="keep N processes beyond --max-np ready to replace lost ones at once",
    )
    add(
        "--host-discovery-script",
        metavar="FILE",
        help="prints the hosts that may be used now, `name:slots` a line; asked again and again. Makes the job elastic",
    )
    add(
        "--slots-per-host",
        "--slots",
        type=_count,
        metavar="N",
        help="slots of hosts for which the script prints no number",
    )
    add("--reset-limit", type=_limit, metavar="N", help="end the job if its workers change more often than N times")
    add(
        "--blacklist-cooldown-range",
        nargs=2,
        type=int,
        dest="cooldown",
        metavar=("LOW", "HIGH"),
        help="use a host again whose workers failed: at first after 2 to 3 times LOW seconds, after HIGH at most; "
        "default never",
    )


def _add_controllers(group: Any) -> None:
    for name, text in (
        ("gloo", "horovodrun itself, and the ranks use Horovod's own transports (the default)"),
        ("mpi", "mpirun, whichever is found: Open MPI, MPICH, Intel MPI or Spectrum MPI"),
        ("jsrun", "jsrun, inside a job of LSF"),
    ):
        group.add_argument(f"--{name}", action="append_const", const=name, dest="controllers", help=text)
    group.add_argument("--mpi-args", metavar="ARGUMENTS", help="more arguments for mpirun or jsrun, as one word")
    group.add_argument(
        "--binding-args", metavar="ARGUMENTS", help="how mpirun or jsrun binds processes to cores, as one word"
    )
    group.add_argument("--tcp", action="store_true", help="no InfiniBand for NCCL and Spectrum MPI: TCP alone")


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


def _add_old(parser: argparse.ArgumentParser, old: OldFlag) -> None:
    class Note(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
            if not str(_[1]).startswith("--no-") or old.both:
                namespace.without_effect = [*namespace.without_effect, (_[1], old.why)]

    def value(given: str) -> Any:
        try:
            return old.parse(given)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{old.name}={given!r}: expected {old.kind[1]}") from None

    names = [old.name, old.name.replace("--", "--no-", 1)] if old.is_switch else [old.name]
    kind = {"nargs": 0} if old.is_switch else {"type": value}
    parser.add_argument(*names, action=Note, dest="old_flag", help=argparse.SUPPRESS, **kind)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; expected a number from 1 to 65535")
    return int(text)


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank; expected a number, 0 or more")
    return int(text)


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; at least 1 is needed")
    return count


def _limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of changes; expected 0 or more")
    return int(text)


def _split(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The launcher's flags, and the user's command, in which argparse itself would look for our flags."""
    arguments = list(arguments)
    values = {
        name: action.nargs if isinstance(action.nargs, int) else 1
        for action in parser._actions  # noqa: SLF001
        for name in action.option_strings
    }
    position = 0
    while position < len(arguments) and arguments[position].startswith("-") and arguments[position] != "--":
        if re.fullmatch("-np[0-9]+", arguments[position]):  # mpirun's users write it in one word
            arguments[position : position + 1] = ["-np", arguments[position][3:]]
        name, equals, _ = arguments[position].partition("=")
        if name not in values:
            nearest = difflib.get_close_matches(name, values, 1, cutoff=0.75)
            hint = f"{nearest[0]} is the nearest; horovodrun --help lists" if nearest else "horovodrun --help lists"
            raise UsageError(f"there is no flag {name}\nhint: {hint} the flags")
        if name in _OTHERS_ARGUMENTS and not equals and position + 1 < len(arguments):
            arguments[position : position + 2] = [f"{name}={arguments[position + 1]}"]
            equals = "="
        if equals and not values[name]:
            parser.error(f"{name} takes no value, got {arguments[position]}")
        position += 1 + values[name] - (1 if equals else 0)
    return arguments[:position], arguments[position:]
