# SPDX-License-Identifier: Apache-2.0
"""The order of ranks in a generation. Pure.

Rank 0 is the one whose state all others continue from. Its host comes first, then the others by age; inside a host,
rank 0 comes first, then the others by slot. So a worker keeps its rank as long as nothing before it changes.

A local rank is a worker's number among the workers of its host, by slot, whatever the ranks are. So it stays the same,
and with it the device that a script chooses by it, unless a lower slot becomes empty or is filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horovod.elastic.messages import Worker
from horovod.world import topology
from horovod.world.topology import Identity

__all__ = ["identities", "in_rank_order"]


def in_rank_order(members: Iterable[Worker], root: int, hosts: Sequence[str]) -> tuple[Worker, ...]:
    """The members by rank. `root`: the worker that becomes rank 0; `hosts`: oldest first.

    A host that is not in the list, because it is about to leave, comes last unless it is the root's.
    """
    members = tuple(members)
    age = {host: number for number, host in enumerate(hosts)}
    home = next(worker.host for worker in members if worker.number == root)

    def key(worker: Worker) -> tuple[bool, int, str, bool, int]:
        is_root = worker.number == root
        return worker.host != home, age.get(worker.host, len(age)), worker.host, not is_root, worker.slot

    return tuple(sorted(members, key=key))


def identities(members: Sequence[Worker]) -> list[Identity]:
    """The identities by rank of members in rank order."""
    hosts: dict[str, list[int]] = {}
    for rank in sorted(range(len(members)), key=lambda rank: members[rank].slot):
        hosts.setdefault(members[rank].host, []).append(rank)
    return topology.identities([hosts[host] for host in dict.fromkeys(worker.host for worker in members)])
