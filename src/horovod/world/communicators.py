# SPDX-License-Identifier: Apache-2.0
"""The native registry of communicators, the ways between ranks: which there are, which one joins which ranks.

One row of the registry answers init, `horovodrun --check-build`, and mpi_built() and its like.
"""

from __future__ import annotations

import ctypes
import dataclasses
import difflib
import functools
import json
from collections.abc import Sequence

from horovod.core import native
from horovod.core.exceptions import StartError
from horovod.core.wording import on_one_line
from horovod.world import mpi

__all__ = ["BY_MPI", "Communicator", "all_communicators", "check", "control_peers", "is_built", "plan"]

_NAME_BYTES = 32
BY_MPI = ("mpi", "hierarchical-mpi")  # these need mpi4py's MPI


@dataclasses.dataclass(frozen=True)
class Communicator:
    """A row. `why`: the reason if it is not available."""

    name: str
    title: str
    available: bool
    why: str


@functools.cache
def all_communicators() -> tuple[Communicator, ...]:
    """All rows, in the order in which HOROVOD_TRANSPORT=auto tries them."""
    mpi.announce()
    return tuple(Communicator(**row) for row in json.loads(native.library().hvd_communicators()))


def is_built(name: str) -> bool:
    """True if this installation can use the communicator of that name."""
    return any(row.name == name and row.available for row in all_communicators())


def check(transport: str) -> None:
    """Raises StartError if the communicator does not exist or is unavailable."""
    names = ["auto", *(row.name for row in all_communicators())]
    if transport not in names:
        nearest = difflib.get_close_matches(transport, names, 1)
        raise StartError(
            f"HOROVOD_TRANSPORT={on_one_line(transport)} cannot be used: there is no such communicator\n"
            f"hint: {f'{nearest[0]} is the nearest; ' if nearest else ''}there are {', '.join(names)}",
            "start-transport",
        )
    plan("mpi" if transport in BY_MPI else transport, [0], [0], 0)  # the error names what the user may have set


def plan(
    transport: str, host_of_rank: Sequence[int], members: Sequence[int], rank: int, *, must: bool = True
) -> tuple[str, set[int]]:
    """The name of the communicator that joins `members`, and the ranks to which `rank` needs a data link for it.

    If `transport` does not fit them, StartError; without `must` the first one that fits.
    """
    mpi.announce()
    size = len(host_of_rank)
    hosts = (ctypes.c_int32 * size)(*host_of_rank)
    ranks = (ctypes.c_int32 * len(members))(*members)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    linked = (ctypes.c_uint8 * size)()
    status = native.Status()
    code = native.library().hvd_plan(
        transport.encode(),
        int(must),
        ctypes.addressof(hosts),
        size,
        ctypes.addressof(ranks),
        len(members),
        rank,
        ctypes.addressof(name),
        ctypes.addressof(linked),
        ctypes.addressof(status),
    )
    if code != native.OK:
        raise StartError(status.message(), "start-transport")
    return name.value.decode(), {peer for peer in range(size) if linked[peer]}


def control_peers(host_of_rank: Sequence[int], rank: int, relays_above_hosts: int) -> set[int]:
    """The ranks to which `rank` needs the links between leaders: none if it does not lead its host.

    Up to so many hosts, rank 0 and each other leader; above that, by way of relays.
    """
    size = len(host_of_rank)
    hosts = (ctypes.c_int32 * size)(*host_of_rank)
    linked = (ctypes.c_uint8 * size)()
    status = native.Status()
    code = native.library().hvd_control_links(
        ctypes.addressof(hosts), size, relays_above_hosts, rank, ctypes.addressof(linked), ctypes.addressof(status)
    )
    if code != native.OK:
        raise StartError(status.message(), "start-connection")
    return {peer for peer in range(size) if linked[peer]}
