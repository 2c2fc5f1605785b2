# SPDX-License-Identifier: Apache-2.0
"""Which hosts a job gets, who said so, and how agents are started there.

-H and --hostfile win over the allocation of a batch system; without both, the job runs on this machine.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.core.wording import counted, on_one_line
from horovod.launcher.allocations import Allocation, find_allocation
from horovod.launcher.options.hosts import Host, HostsError, is_local, parse_hostfile, parse_hosts, ranks_by_host
from horovod.launcher.options.usage import UsageError
from horovod.launcher.placement import PLACEMENTS
from horovod.world.launchers import recognise

__all__ = ["HostList", "choose_hosts"]

_LOOKUPS_AT_A_TIME = 32


@dataclasses.dataclass(frozen=True)
class HostList:
    """`size`: the number of ranks. `origin`: who named the hosts, in words. `start_with`: a remote placement's name."""

    hosts: list[Host]
    size: int
    origin: str
    start_with: str

    def here(self) -> int:
        """The number of ranks on this machine."""
        shares = zip(self.hosts, ranks_by_host(self.hosts, self.size), strict=True)
        return sum(count for host, count in shares if is_local(host.name))


def choose_hosts(options: argparse.Namespace, environment: Mapping[str, str]) -> HostList:
    """Looks all names up, which may take seconds. Raises UsageError or HostsError."""
    if options.hosts is not None and options.hostfile is not None:
        raise UsageError("both -H and --hostfile were given: expected one\nhint: leave one of them out")
    hosts = _given_hosts(options)
    allocation = _allocation(environment, needed=not hosts)
    if hosts:
        origin = "-H" if options.hosts is not None else f"--hostfile {on_one_line(options.hostfile)}"
    elif allocation is not None:
        _check_started_once(allocation, environment)
        hosts, origin = allocation.hosts, str(allocation)
    else:
        slots = max(options.num_proc or 0, (options.max_np or 0) + (options.spares or 0))
        hosts, origin = [Host("localhost", slots)], "the default, this machine"
    if options.num_proc is None and (allocation is None or hosts is not allocation.hosts):
        raise UsageError(_without_size(options.command))
    size = options.num_proc or sum(host.slots for host in hosts)
    _check_slots(hosts, size, allocation)
    # Look-ups of names may take seconds each; the answers are kept.
    with concurrent.futures.ThreadPoolExecutor(_LOOKUPS_AT_A_TIME) as pool:
        list(pool.map(is_local, [host.name for host in hosts]))
    return HostList(hosts, size, origin, options.start_with or _way(hosts, allocation))


def _without_size(command: Sequence[str]) -> str:
    """There is no -np, or it stands behind the command, whose argument it is then."""
    text, command = "-np, the number of processes, is missing", list(command)
    at = next((at for at, word in enumerate(command) if re.fullmatch("-np[0-9]*|--num-proc(=.*)?", word)), None)
    if at is None:
        return f"{text}\nhint: horovodrun -np 2 python train.py"
    words = 2 if command[at] in ("-np", "--num-proc") else 1
    flag, rest = (
        on_one_line(shlex.join(some)) for some in (command[at : at + words], command[:at] + command[at + words :])
    )
    return (
        f"{text}: `{flag}` stands behind the command, which gets it as an argument\n"
        f"hint: flags go before the command: horovodrun {flag} {rest}"
    )


def _given_hosts(options: argparse.Namespace) -> list[Host]:
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is None:
        return []
    if not options.hostfile.strip():
        raise UsageError("--hostfile names no file\nhint: is a variable empty?")
    try:
        text = Path(options.hostfile).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text"
        raise UsageError(f"--hostfile {on_one_line(options.hostfile)}: {why}") from None
    return parse_hostfile(text, options.hostfile)


def _allocation(environment: Mapping[str, str], needed: bool) -> Allocation | None:
    try:
        return find_allocation(environment)
    except HostsError:
        if needed:
            raise
        return None  # the user has named the hosts


def _check_started_once(allocation: Allocation, environment: Mapping[str, str]) -> None:
    """`srun horovodrun ...` would start the whole job once for each task."""
    others = recognise(environment)
    # The shell of `srun --pty` is the first task; the others have ended at once.
    if others is not None and "SLURM_PTY_PORT" not in environment:
        raise UsageError(
            f"{others.launcher} has started horovodrun {others.size} times in {allocation}, and each would start the "
            f"job\nhint: start the script itself with {others.launcher}, or horovodrun without it"
        )


def _check_slots(hosts: list[Host], size: int, allocation: Allocation | None) -> None:
    try:
        ranks_by_host(hosts, size)
    except HostsError as error:
        if allocation is None or hosts is not allocation.hosts:
            raise
        slots = counted(sum(host.slots for host in hosts), "slot")
        raise HostsError(
            f"{str(error).partition(chr(10))[0]}\nhint: {allocation} has {slots}: ask it for more tasks, lower -np, "
            "or name hosts and slots with -H"
        ) from None


def _way(hosts: list[Host], allocation: Allocation | None) -> str:
    """The batch system's own way to its hosts, if its program is here; else ssh."""
    if allocation is None or not {host.name for host in hosts} <= {host.name for host in allocation.hosts}:
        return "ssh"
    own = next((one for one in PLACEMENTS if one.name == allocation.placement), None)
    return own.name if own is not None and (not own.program or shutil.which(own.program)) else "ssh"
