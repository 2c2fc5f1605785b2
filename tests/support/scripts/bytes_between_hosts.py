# SPDX-License-Identifier: Apache-2.0
"""A rank that counts what collectives send from its host: horovodrun ... python -m support.scripts.bytes_between_hosts

The first rank of each host prints a line of JSON: by collective, the bytes of data that its interface has sent, and
those that had to leave the host. Every rank checks the bits of all results.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import horovod.core as hvd

ELEMENTS = 15 << 18  # of float32: 15 MiB, which 4 and 5 ranks divide

# Of Ethernet, IPv4 and TCP with timestamps, in bytes; and the data of a packet, which holds 1,500 with the latter two.
HEADERS, SEGMENT = 14 + 20 + 32, 1448

Array = np.ndarray[Any, Any]


def main() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    names = hvd.allgather_object(socket.gethostname())
    host_of_rank = [names.index(name) for name in names]
    here, hosts = host_of_rank[rank], len(set(names))
    values = [np.random.default_rng(of_rank).standard_normal(ELEMENTS, np.float32) for of_rank in range(size)]
    mine, total = values[rank], folded(values, host_of_rank)
    local = host_of_rank.count(here)
    whole, part = mine.nbytes, mine.nbytes // size
    root = size - 2  # not always its host's first
    found = {}

    def measure(name: str, must_leave: float, call: Callable[[], Array], expected: Array) -> None:
        hvd.barrier()
        before = bytes_sent()
        result = call()
        hvd.barrier()
        found[name] = (bytes_sent() - before, must_leave)
        assert result.tobytes() == expected.tobytes(), f"rank {rank}: the bits of {name} are wrong"

    for turn in ("open", "first", "second"):  # the first one opens links; then all ways that allreduce tries are taken
        measure(f"allreduce {turn}", 2 * (hosts - 1) / hosts * whole, lambda: hvd.allreduce(mine, op=hvd.Sum), total)
    measure("broadcast open", whole, lambda: hvd.broadcast(mine, root), values[root])
    measure("broadcast", whole, lambda: hvd.broadcast(mine, root), values[root])
    rows = slice(rank * ELEMENTS // size, (rank + 1) * ELEMENTS // size)
    leaving = part * (size - local)
    measure("reducescatter", leaving, lambda: hvd.reducescatter(mine, op=hvd.Sum), total[rows])
    gathered = np.concatenate([of_rank[: ELEMENTS // size] for of_rank in values])
    block = part * local * (hosts - 1)
    measure("allgather", block, lambda: hvd.allgather(mine[: ELEMENTS // size]), gathered)
    swapped = np.concatenate([of_rank[rows] for of_rank in values])
    measure("alltoall", leaving * local, lambda: first_of(hvd.alltoall(mine)), swapped)
    if hvd.local_rank() == 0:
        os.write(1, (json.dumps(found) + "\n").encode())  # in one piece: the ranks share the pipe


def first_of(result: Any) -> Array:
    return result[0] if isinstance(result, tuple) else result


def folded(values: list[Array], host_of_rank: list[int]) -> Array:
    """The one expression: from the left inside each host, then over the hosts."""
    of_host: dict[int, Array] = {}
    for host, one in zip(host_of_rank, values, strict=True):
        of_host[host] = of_host[host] + one if host in of_host else one
    first, *others = (of_host[host] for host in sorted(of_host))  # by lowest rank
    for one in others:
        first = first + one
    return first


def bytes_sent() -> int:
    """Of data, through this host's interface: without headers and acknowledgements, and without what TCP sent again
    because a host was busy."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    [counters] = [line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:")]
    of_all = Path("/proc/net/snmp").read_text().splitlines()
    names, values = (line.split() for line in of_all if line.startswith("Tcp:"))
    again = int(dict(zip(names, values, strict=True))["RetransSegs"])
    return int(counters[8]) - HEADERS * int(counters[9]) - SEGMENT * again


if __name__ == "__main__":
    main()
