# SPDX-License-Identifier: Apache-2.0
"""The type of an allocation, and a reader of batch systems' files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from horovod.core.wording import on_one_line
from horovod.launcher.options.hosts import Host, HostsError, parse_hostfile

__all__ = ["Allocation", "Find", "hosts_of_file"]


@dataclasses.dataclass(frozen=True)
class Allocation:
    """`system` as people call it; `source`: the variable or file that the hosts were read from.

    `placement`: the way to start agents that the system has itself, by its name in launcher/placement; "" if none.
    """

    system: str
    source: str
    hosts: list[Host]
    placement: str = ""

    def __str__(self) -> str:
        return f"{on_one_line(self.system)} ({on_one_line(self.source)})"


Find = Callable[[Mapping[str, str]], "Allocation | None"]


def hosts_of_file(filename: str, source: str) -> list[Host]:
    """The hosts of a file in any format of parse_hostfile. Raises HostsError that names the file and `source`."""
    try:
        text = Path(filename).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text"
        raise HostsError(
            f"{source}={on_one_line(filename)}: {why}\nhint: -H or --hostfile names the hosts instead"
        ) from None
    return parse_hostfile(text, filename)
