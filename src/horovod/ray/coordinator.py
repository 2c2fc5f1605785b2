# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a job on Ray are, and the rendezvous at which they meet.

It runs in the process that starts the ranks: the driver, Ray Train's controller, or an actor of its own.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from horovod.ray.utils import detect_nics, nics_to_env_var, setting_of
from horovod.settings import environment_of
from horovod.world.network import interface_address
from horovod.world.rendezvous_server import RendezvousServer
from horovod.world.secret import new_secret
from horovod.world.topology import places_of

__all__ = ["Coordinator", "Orders"]


@dataclasses.dataclass(frozen=True)
class Orders:
    """Makes a process a rank: environment variables, and the job's secret, which is never one of them."""

    environment: dict[str, str]
    secret: bytes = dataclasses.field(repr=False)


class Coordinator:
    """Registers the ranks, tells each its place, and keeps the rendezvous until `close`."""

    rendezvous: RendezvousServer | None = None
    global_rendezv_port: int | None = None
    nics: Any = None
    node_id_by_rank: dict[int, str] | None = None

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.node_id_by_rank = {}
        self._whereabouts: dict[int, dict[str, Any]] = {}
        self._secret = new_secret()

    @property
    def world_size(self) -> int:
        return len(self._whereabouts)

    @property
    def hostnames(self) -> set[str]:
        """The names of the ranks' machines."""
        return {str(here["name"]) for here in self._whereabouts.values()}

    @property
    def node_id_string(self) -> str:
        """The nodes with their numbers of ranks, as horovodrun's -H has hosts: NODE:2,NODE:1."""
        counts = Counter((self.node_id_by_rank or {}).values())
        return ",".join(f"{node}:{count}" for node, count in counts.items())

    def register(self, hostname: str, node_id: str, world_rank: int, machine: str = "") -> None:
        """Adds a rank. Ranks share memory if they are on one node of Ray and on one `machine` (world/network.py)."""
        assert self.node_id_by_rank is not None
        self.node_id_by_rank[world_rank] = node_id
        self._whereabouts[world_rank] = {"hostname": node_id, "machine": machine, "name": hostname}

    def finalize_registration(self) -> dict[int, dict[str, str]]:
        """The environment variables of each rank that say its place."""
        ordered = [self._whereabouts[rank] for rank in range(self.world_size)]
        return {rank: environment_of(**place) for rank, place in enumerate(places_of(ordered))}

    def establish_rendezvous(self) -> dict[str, str]:
        """Opens the rendezvous on this node's address; the environment variables that say where."""
        self.nics = detect_nics(self.settings, sorted(self.hostnames))
        interfaces = nics_to_env_var(self.nics)
        address = interface_address(next(iter(interfaces.values()))) if interfaces else ray.util.get_node_ip_address()
        self.rendezvous = RendezvousServer(self._secret, address, notices_ends=True)
        self.global_rendezv_port = self.rendezvous.port
        meeting_point = environment_of(
            rendezvous_address=address,
            rendezvous_port=self.rendezvous.port,
            start_timeout_s=float(setting_of(self.settings, "timeout_s", 300)),
        )
        return {**meeting_point, **interfaces}

    def orders(self, whereabouts: Sequence[Mapping[str, Any]]) -> list[Orders]:
        """Registers the ranks, of which each says where it is (place.whereabouts), and opens the rendezvous."""
        for rank, here in enumerate(whereabouts):
            self.register(here["name"], here["node_id"], rank, here["machine"])
        places, meeting_point = self.finalize_registration(), self.establish_rendezvous()
        return [Orders({**places[rank], **meeting_point}, self._secret) for rank in range(self.world_size)]

    def gone(self, rank: int, text: str) -> None:
        """Tells the ranks that wait for this one in init that it will not come."""
        if self.rendezvous is not None:
            self.rendezvous.gone(rank, text)

    def close(self) -> None:
        """Ends the rendezvous. Idempotent."""
        if self.rendezvous is not None:
            self.rendezvous.close()
