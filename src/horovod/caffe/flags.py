# SPDX-License-Identifier: Apache-2.0
"""Command lines as Caffe's commands take them: one dash or two, `--flag value` or `--flag=value`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from horovod.caffe.errors import CaffeError, nearest
from horovod.caffe.log import Log
from horovod.core.exceptions import HorovodInternalError, StartError
from horovod.core.wording import tell

__all__ = ["FAILED", "Flags", "guarded"]

FAILED = 134  # what a shell shows of a process that has aborted, as Caffe does after a failed check


class Flags(argparse.ArgumentParser):
    """Flags of one command."""

    def __init__(self, usage: str) -> None:
        super().__init__(usage=usage, allow_abbrev=False, add_help=False)
        self._booleans: dict[str, str] = {}  # as they are written alone, and in full
        self.add_argument("-help", "--help", "-h", action="help", help="this text")

    def flag(self, name: str, default: Any, help: str) -> None:
        """A flag of the type of its default value. A Boolean is given alone, with `no` before it, or with a value."""
        if isinstance(default, bool):
            more: dict[str, Any] = {"type": _truth, "metavar": "bool"}
            for dash in ("-", "--"):
                self._booleans |= {f"{dash}{name}": f"{dash}{name}=true", f"{dash}no{name}": f"{dash}{name}=false"}
        else:
            more = {"type": type(default), "metavar": type(default).__name__}
        self.add_argument(f"-{name}", f"--{name}", dest=name, default=default, help=f"{help} ({default!r})", **more)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The flags' values. A Boolean alone does not take the argument after it."""
        return self.parse_intermixed_args([self._booleans.get(one, one) for one in arguments])

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and ends with status 1, as Caffe's flags do."""
        tell(f"ERROR: {message}{self._nearest_flag(message)}\n{self.format_usage().rstrip()}")
        raise SystemExit(1)

    def _nearest_flag(self, message: str) -> str:
        """A hint for the first flag that argparse does not know."""
        found = re.match(r"unrecognized arguments: (-[^\s=]+)", message)
        known = [name for name in (*self._option_string_actions, *self._booleans) if name.startswith("--")]
        return nearest(f"--{found[1].lstrip('-')}", known) if found else ""


def _truth(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")
    return known[text.lower()]


def guarded(main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None) -> int:
    """Runs a command; an error becomes glog's fatal line and status 134."""
    try:
        return main(sys.argv[1:] if arguments is None else arguments)
    except (CaffeError, HorovodInternalError, StartError) as error:
        Log().fatal(f"Check failed: {error}")
        sys.stderr.write("*** Check failure: the command ends here ***\n")
        return FAILED
