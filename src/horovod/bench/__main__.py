# SPDX-License-Identifier: Apache-2.0
"""The command line of the measurements. Starts its own ranks by horovodrun, unless it is one."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

from horovod.bench import allreduce, gradients, link, strategies
from horovod.bench.allreduce import DEFAULT_SIZES
from horovod.bench.record import ANY_HOP, json_problem, refused
from horovod.core.command_line import Parser
from horovod.core.wording import on_one_line
from horovod.settings import Settings
from horovod.simulate.arguments import count, gbit, number
from horovod.world.interpreter import python_command

_RUN = {"allreduce": allreduce.run, "gradients": gradients.run, "link": link.run, "strategies": strategies.run}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_bytes(text: str) -> int:
    """The bytes that "4", "64K" or "16M" stand for: a multiple of 4, which is one float32."""
    match = re.fullmatch(r"(\d+)([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of bytes such as 4, 64K or 16M")
    size = int(match[1]) * _UNITS[match[2].upper()]
    if size == 0 or size % 4:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a multiple of 4 bytes, the size of one float32")
    return size


def _seconds(text: str) -> float:
    return number(text, 1e-3, 1e6)


def parser() -> argparse.ArgumentParser:
    top = Parser(prog="python -m horovod.bench", description="Measure Horovod on this machine.")
    commands = top.add_subparsers(dest="command", required=True)
    by_size = commands.add_parser("allreduce", help="latency and bandwidth by size, beside Gloo if torch is installed")
    by_size.add_argument(
        "--sizes",
        type=lambda text: [size_bytes(part) for part in text.split(",")],
        default=[size_bytes(part) for part in DEFAULT_SIZES.split(",")],
        help=f"bytes, separated by commas ({DEFAULT_SIZES})",
    )
    one_step = commands.add_parser("gradients", help="ResNet-50's 161 gradients, beside Gloo if torch is installed")
    old_ways = commands.add_parser("strategies", help="parameter servers, a ring and more beside allreduce, over hosts")
    old_ways.add_argument(
        "--bytes", type=size_bytes, default=strategies.resnet50_bytes(), help="of gradients (those of ResNet-50)"
    )
    old_ways.add_argument("--only-allreduce", action="store_true", help="nothing beside it")
    old_ways.add_argument("--rounds", type=count, default=3, help="steps of each strategy, in turns (3)")
    old_ways.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    old_ways.set_defaults(np=1)  # it is started on several hosts, by horovodrun
    of_hosts = commands.add_parser("link", help="the network between hosts, for python -m horovod.simulate forecast")
    of_hosts.add_argument("--gbit", type=gbit, help="the network's nominal rate in Gbit/s (the highest measured)")
    of_hosts.add_argument("--seconds", type=_seconds, default=10.0, help="for each of three figures (10)")
    of_hosts.add_argument("--json", default="link.json", metavar="FILE", help="where it is written (link.json)")
    of_hosts.set_defaults(np=1)  # as the one before
    by_size.add_argument("--any-hop", action="store_true", help=ANY_HOP)
    for command in (by_size, one_step):
        command.add_argument("-np", "--np", type=count, default=2, help="ranks to start; ignored under horovodrun (2)")
        command.add_argument("--rounds", type=count, default=15, help="paired rounds (15)")
        command.add_argument("--seconds", type=_seconds, default=0.1, help="time to aim at for a side of a round (0.1)")
        command.add_argument("--no-gloo", action="store_true", help="measure Horovod alone")
        command.add_argument("--json", metavar="FILE", help="write machine, commit, command and raw data to FILE")
    return top


def main() -> int:
    arguments = parser().parse_args()
    if Settings.from_environment().size is None and arguments.np > 1:
        return _started_by_horovodrun(arguments.np)
    problem = json_problem(arguments.json)
    try:
        return _RUN[arguments.command](arguments) if problem is None else refused(problem)
    except OSError as error:
        if error.filename is None or error.filename != arguments.json:
            raise
        return refused(f"cannot write {on_one_line(arguments.json)}: {error.strerror}")


def _started_by_horovodrun(ranks: int) -> int:
    command = [*python_command("horovod.launcher"), "-np", str(ranks)]
    command += [*python_command("horovod.bench"), *sys.argv[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            print(re.sub(r"^\[\d+\]<stdout>:", "", line), end="", flush=True)
    return launcher.returncode


if __name__ == "__main__":
    sys.exit(main())
