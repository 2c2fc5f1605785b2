# SPDX-License-Identifier: Apache-2.0
"""Ways to add up one training step's gradients over several machines: the old ones beside ours.

A parameter server, alone or one on each host, gets every rank's gradients and sends the sums back. "Gather and
broadcast" collects everything on rank 0, and spreads the sum by a tree. The ring passes each piece on from rank to
rank, twice around. These are written here, over the links between two ranks that alltoall uses: an example of what a
communicator replaces. The last row is `allreduce` itself: direct exchange between hosts, or hierarchical.

What decides is how much goes through the busiest link. It is counted at the hosts' interfaces, so no other program may
use them meanwhile.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from horovod import core as hvd
from horovod.bench.gradients import resnet50_shapes
from horovod.bench.record import refused, write_record

__all__ = ["STRATEGIES", "resnet50_bytes", "run"]

Array = np.ndarray[Any, Any]
# The way of an allreduce between hosts, by the communicator that runs it.
_OURS = {"tcp": "direct exchange", "hierarchical": "hierarchical"}


def resnet50_bytes() -> int:
    return 4 * sum(math.prod(shape) for shape in resnet50_shapes())


def exchange(pieces: Mapping[int, Array]) -> list[Array]:
    """Sends each rank its piece, if there is one; returns what came from each rank."""
    splits = [pieces[rank].size if rank in pieces else 0 for rank in range(hvd.size())]
    sent = [pieces[rank] for rank in sorted(pieces)] or [np.empty(0, np.float32)]
    came, counts = hvd.alltoall(sent[0] if len(sent) == 1 else np.concatenate(sent), splits, name="strategies.exchange")
    return list(np.split(came, np.cumsum(counts)[:-1]))


def added(parts: list[Array]) -> Array:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def through_servers(vector: Array, servers: list[int]) -> Array:
    """Each of these ranks holds an equal share of the parameters."""
    shares = dict(zip(servers, np.array_split(vector, len(servers)), strict=True))
    pushed = exchange(shares)
    sums = {rank: added(pushed) for rank in range(hvd.size())} if hvd.rank() in servers else {}
    del pushed
    return np.concatenate(exchange(sums))


def one_server(vector: Array) -> Array:
    return through_servers(vector, [0])


def server_on_each_host(vector: Array) -> Array:
    return through_servers(vector, list(range(0, hvd.size(), hvd.local_size())))


def gather_and_broadcast(vector: Array) -> Array:
    gathered = exchange({0: vector})
    total = added(gathered) if hvd.rank() == 0 else np.empty_like(vector)
    del gathered
    result: Array = hvd.broadcast(total, 0, name="strategies.broadcast")
    return result


def ring(vector: Array) -> Array:
    """Once around to add, once more to spread."""
    size: int = hvd.size()
    rank: int = hvd.rank()
    pieces = np.array_split(vector.copy(), size)

    def pass_on(piece: int) -> Array:
        return exchange({(rank + 1) % size: pieces[piece % size]})[(rank - 1) % size]

    for step in range(size - 1):
        pieces[(rank - step - 1) % size] += pass_on(rank - step)
    for step in range(size - 1):
        pieces[(rank - step) % size] = pass_on(rank - step + 1)
    return np.concatenate(pieces)


def ours(vector: Array) -> Array:
    result: Array = hvd.allreduce(vector, name="strategies.allreduce", op=hvd.Sum)
    return result


STRATEGIES: dict[str, Callable[[Array], Array]] = {
    "one parameter server": one_server,
    "a server on each host": server_on_each_host,
    "gather and broadcast": gather_and_broadcast,
    "ring": ring,
    "allreduce": ours,
}


def interface_bytes() -> tuple[int, int]:
    """The bytes that this host's interfaces have received and sent, without the loopback."""
    rows = [line.replace(":", " ").split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    outside = [row for row in rows if row[0] != "lo"]
    return sum(int(row[1]) for row in outside), sum(int(row[9]) for row in outside)


def measured(strategy: Callable[[Array], Array], vector: Array) -> tuple[float, int]:
    """Runs in every rank. Seconds, the slowest rank's, and bytes, in the busiest direction of the busiest host."""
    vector.fill(hvd.rank() + 1)
    hvd.barrier()
    before = interface_bytes()
    start = time.perf_counter()
    total = strategy(vector)
    seconds = time.perf_counter() - start
    hvd.barrier()  # nothing is on its way any more
    moved = max(after - earlier for after, earlier in zip(interface_bytes(), before, strict=True))
    expected = hvd.size() * (hvd.size() + 1) / 2
    if total.shape != vector.shape or not np.all(total == expected):
        raise AssertionError(f"rank {hvd.rank()}: expected {expected} in all {vector.size} elements")
    everyone = hvd.allgather_object((seconds, moved))
    return max(one for one, _ in everyone), max(one for _, one in everyone)


def run(arguments: argparse.Namespace) -> int:
    """Runs in every rank; rank 0 prints the table and writes the record. Returns the exit code."""
    hvd.init()
    hosts = hvd.cross_size()
    if hosts < 2:
        return refused(
            "strategies: all ranks are on one host\n"
            "hint: horovodrun -np 2 -H host1:1,host2:1 python -m horovod.bench strategies"
        )
    vector = np.empty(arguments.bytes // 4, np.float32)
    chosen = {"allreduce": ours} if arguments.only_allreduce else STRATEGIES
    names = {name: _OURS.get(hvd.statistics()["transport"], name) if name == "allreduce" else name for name in chosen}
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in names.values()}
    measured(ours, vector[: min(vector.size, 1 << 18)])  # opens the links
    for _ in range(arguments.rounds):
        for name, strategy in chosen.items():
            taken[names[name]].append(measured(strategy, vector))
    if hvd.rank() == 0:
        _report(arguments, hosts, taken)
    return 0


def _report(arguments: argparse.Namespace, hosts: int, taken: dict[str, list[tuple[float, int]]]) -> None:
    # All that a host needs from the others comes in, and as much goes out: no way to add up moves less.
    bound = 2 * arguments.bytes * (hosts - 1) / hosts
    print(f"{hosts} hosts, {hvd.size()} ranks, {arguments.bytes} bytes of gradients; a link must carry {bound:.0f}")
    print(f"{'':>22} {'busiest link, MB':>17} {'of what it must':>16} {'seconds a step':>15}")
    rows = []
    for name, times in taken.items():
        seconds = statistics.median(one for one, _ in times)
        moved = statistics.median(one for _, one in times)
        print(f"{name:>22} {moved / 1e6:>17.1f} {moved / bound:>16.2f} {seconds:>15.3f}")
        rows.append({"strategy": name, "bytes": [one for _, one in times], "seconds": [one for one, _ in times]})
    if arguments.json is not None:
        facts = {"hosts": hosts, "ranks": hvd.size(), "bytes": arguments.bytes, "bound": bound, "rows": rows}
        write_record(arguments.json, ("python", "-m", "horovod.bench"), facts)
