# SPDX-License-Identifier: Apache-2.0
"""The nodes of a Ray cluster as the hosts of an elastic job, and a stand-in whose nodes come and go."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

import ray

from horovod.core.wording import tell
from horovod.elastic.drive.discovery import HostDiscovery

__all__ = ["ChangingNodes", "NodeDiscovery"]


class NodeDiscovery(HostDiscovery):
    """The living nodes by address, each with as many slots as its CPUs, and GPUs, suffice for."""

    def __init__(self, use_gpu: bool, cpus: float, gpus: float | None) -> None:
        self.use_gpu = use_gpu
        self.cpus = cpus
        self.gpus = gpus or 1

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        slots: Counter[str] = Counter()
        for node in ray.nodes():
            if node["Alive"]:
                resources = node["Resources"]
                count = resources.get("CPU", 0) // self.cpus
                if self.use_gpu:
                    count = min(count, resources.get("GPU", 0) // self.gpus)
                slots[node["NodeManagerAddress"]] += int(count)
        return {host: count for host, count in slots.items() if count}


class ChangingNodes(NodeDiscovery):
    """For tests: of the living nodes, some of `min_hosts` to `max_hosts`; one comes or goes after `change_frequency_s`.

    `graceful` has no effect: a worker of a node that goes is always told to stop first.
    """

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool,
        cpus: float,
        gpus: float | None,
        verbose: bool,
        graceful: bool,
    ) -> None:
        super().__init__(use_gpu, cpus, gpus)
        self.min_hosts = min_hosts
        self.max_hosts = max_hosts
        self.change_frequency_s = change_frequency_s
        self.verbose = verbose
        self.graceful = graceful
        self._there: set[str] = set()
        self._next_at = 0.0

    def add_host(self, hosts: dict[str, int]) -> None:
        """Adds one of these hosts that is not there."""
        self._there |= set(self._one_of(set(hosts) - self._there))

    def remove_host(self, hosts: dict[str, int]) -> None:
        """Removes one of these hosts that is there."""
        self._there -= set(self._one_of(set(hosts) & self._there))

    def change_hosts(self, hosts: dict[str, int]) -> None:
        """Adds or removes one of these hosts, within the limits."""
        count, most = len(self._there), min(self.max_hosts, len(hosts))
        if count < self.min_hosts or (count < most and random.random() < 0.5):
            self.add_host(hosts)
        elif count > self.min_hosts:
            self.remove_host(hosts)
        if self.verbose:
            tell(f"hosts of the test: {', '.join(sorted(self._there))}", sys.stdout)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        hosts = super().find_available_hosts_and_slots()
        self._there &= set(hosts)
        while len(self._there) < min(self.min_hosts, len(hosts)):
            self.add_host(hosts)
        now = time.monotonic()
        if not self._next_at:
            self._next_at = now + self.change_frequency_s
        elif now >= self._next_at:
            self._next_at = now + self.change_frequency_s
            self.change_hosts(hosts)
        return {host: slots for host, slots in hosts.items() if host in self._there}

    def _one_of(self, hosts: set[str]) -> list[str]:
        return random.sample(sorted(hosts), min(1, len(hosts)))
