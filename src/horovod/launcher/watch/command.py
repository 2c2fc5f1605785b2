# SPDX-License-Identifier: Apache-2.0
"""The commands that look at running jobs: `horovodrun jobs`, `horovodrun top` and `horovodrun stacks`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from horovod.core.command_line import Parser
from horovod.launcher.job.terminal import discard
from horovod.launcher.options.usage import UsageError
from horovod.world.channel import ChannelError

__all__ = ["COMMANDS", "look"]

COMMANDS = {
    "jobs": "list your jobs that run on this host",
    "top": "show the ranks of a running job, and which one is slow",
    "stacks": "print where all ranks of a running job are now",
}


def look(arguments: Sequence[str]) -> tuple[str, int]:
    """Runs one of COMMANDS. Returns the text to print and the exit code. Raises UsageError."""
    name = arguments[0]
    parser = Parser(prog=f"horovodrun {name}", description=COMMANDS[name].capitalize() + ".")
    if name != "jobs":
        parser.add_argument(
            "job", nargs="?", metavar="JOB", help="its id, as horovodrun jobs shows it; default the only one"
        )
    if name == "top":
        parser.add_argument("--once", action="store_true", help="print one view and exit")
        parser.add_argument("--interval", type=_seconds, default=2.0, metavar="S", help="seconds between two views (2)")
    if name == "stacks":
        parser.add_argument("--all-threads", action="store_true", help="print all threads that run Python")
    options = parser.parse_args(arguments[1:])
    try:
        return _run(name, options)
    except ChannelError as error:
        raise UsageError(f"the job cannot be asked: {error}", 1) from None
    except BrokenPipeError:  # of a reader that takes only the beginning
        discard(sys.stdout)
        return "", 0
    except OSError as error:
        discard(sys.stdout)
        raise UsageError(f"cannot print: {error.strerror or error}", 1) from None


def _seconds(text: str) -> float:
    if not 0.1 <= (seconds := float(text)) <= 3600:
        raise ValueError
    return seconds


def _run(name: str, options: argparse.Namespace) -> tuple[str, int]:
    # Each is imported when it is asked for.
    if name == "jobs":
        from horovod.launcher.watch.jobs import jobs

        return jobs(), 0
    if name == "stacks":
        from horovod.launcher.watch.stacks import stacks

        return stacks(options.job, all_threads=options.all_threads), 0
    from horovod.launcher.watch.top import top

    try:
        return "", top(options.job, options.interval, once=options.once)
    except KeyboardInterrupt:
        return "", 0
