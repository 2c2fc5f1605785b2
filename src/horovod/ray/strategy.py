# SPDX-License-Identifier: Apache-2.0
"""Placement groups: which nodes the ranks are on. A strategy owns its group, if it made it, and the actors in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.core.wording import counted
from horovod.ray.utils import setting_of
from horovod.ray.worker import RankWorker

__all__ = ["BaseStrategy", "ColocatedStrategy", "PGStrategy", "create_placement_group"]

_PROGRESS_S = 10.0
_log = logging.getLogger("horovod")


def resources_of(cpus: float, gpus: float) -> dict[str, float]:
    return {name: count for name, count in (("CPU", cpus), ("GPU", gpus)) if count}


def in_words(resources: dict[str, float]) -> str:
    """Resources as a text: 4 CPU, 1 GPU."""
    return ", ".join(f"{count:g} {name}" for name, count in sorted(resources.items())) or "nothing"


def create_placement_group(
    resources_per_bundle: dict[str, float], num_bundles: int, pg_timeout: float, pg_strategy: str
) -> PlacementGroup:
    """A placement group of equal bundles, once Ray has reserved it. Raises TimeoutError with what there is."""
    group = ray.util.placement_group([dict(resources_per_bundle)] * num_bundles, strategy=pg_strategy)
    until = time.monotonic() + pg_timeout
    asked = f"{counted(num_bundles, 'bundle')} of {in_words(resources_per_bundle)} ({pg_strategy})"
    while True:
        left_s = until - time.monotonic()
        if group.wait(max(0.0, min(left_s, _PROGRESS_S))):
            return group
        if left_s <= _PROGRESS_S:
            break
        _log.warning("horovod: Ray has not reserved %s yet; %.0f s are left", asked, left_s - _PROGRESS_S)
    ray.util.remove_placement_group(group)
    there, free = ray.cluster_resources(), ray.available_resources()
    names = resources_per_bundle.keys()
    nodes = f" on {counted(sum(node['Alive'] for node in ray.nodes()), 'node')}"
    raise TimeoutError(
        f"the placement group is not ready after {pg_timeout:g} s: requested {asked}; the cluster has "
        f"{in_words({name: there.get(name, 0) for name in names})}{nodes}, of which "
        f"{in_words({name: free.get(name, 0) for name in names})} are available\n"
        "hint: ask for fewer or smaller workers, add nodes, end what uses them (`ray status` shows it), or wait "
        "longer: RayExecutor.create_settings(placement_group_timeout_s=...)"
    )


class BaseStrategy:
    """Makes the actors of all ranks, in rank order."""

    placement_group: PlacementGroup | None = None
    workers: list[Any] | None = None
    _made_group = False

    def __init__(self, settings: Any, use_gpu: bool, cpus_per_worker: int, gpus_per_worker: int | None) -> None:
        self.settings = settings
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = (gpus_per_worker or 1) if use_gpu else 0

    @property
    def num_workers(self) -> int:
        raise NotImplementedError

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        """Starts the actors. Returns those of all ranks, and one of each node. Blocks until the group is ready."""
        raise NotImplementedError

    @classmethod
    def get_node_workers(cls, workers: Sequence[Any]) -> list[Any]:
        """One actor of each node, the first."""
        nodes = ray.get([worker.node_id.remote() for worker in workers])
        first: dict[str, Any] = {}
        for node, worker in zip(nodes, workers, strict=True):
            first.setdefault(node, worker)
        return list(first.values())

    def resources_per_worker(self) -> dict[str, float]:
        """The share of its bundle that each actor has."""
        return resources_of(self.cpus_per_worker, self.gpus_per_worker)

    def shutdown(self) -> None:
        """Removes the placement group, if it was made here. Idempotent."""
        if self.placement_group is not None and self._made_group:
            ray.util.remove_placement_group(self.placement_group)
        self.placement_group = None
        self.workers = None

    def _make_group(self, bundle: dict[str, float], bundles: int, how: str) -> None:
        timeout_s = setting_of(self.settings, "placement_group_timeout_s", 100)
        self.placement_group = create_placement_group(bundle, bundles, timeout_s, how)
        self._made_group = True

    def _start(self, bundle_of_rank: Sequence[int]) -> list[Any]:
        actor = ray.remote(concurrency_groups={"control": 1})(RankWorker)
        self.workers = [
            actor.options(
                num_cpus=self.cpus_per_worker,
                num_gpus=self.gpus_per_worker,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.placement_group, bundle),
            ).remote(world_rank=rank, world_size=len(bundle_of_rank))
            for rank, bundle in enumerate(bundle_of_rank)
        ]
        return self.workers


class ColocatedStrategy(BaseStrategy):
    """The same number of ranks on each of `num_hosts` nodes: a bundle is a node's share (STRICT_SPREAD)."""

    def __init__(
        self,
        settings: Any,
        num_hosts: int,
        num_workers_per_host: int,
        use_gpu: bool,
        cpus_per_worker: int,
        gpus_per_worker: int | None,
    ) -> None:
        super().__init__(settings, use_gpu, cpus_per_worker, gpus_per_worker)
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host

    @property
    def num_workers(self) -> int:
        return self.num_hosts * self.num_workers_per_host

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        count = self.num_workers_per_host
        bundle = {name: share * count for name, share in self.resources_per_worker().items()}
        self._make_group(bundle, self.num_hosts, "STRICT_SPREAD")
        workers = self._start([rank // count for rank in range(self.num_workers)])
        return workers, workers[::count]


class PGStrategy(BaseStrategy):
    """Ranks close to each other: a bundle each (PACK), or any bundle of a group that exists, which stays."""

    def __init__(
        self,
        settings: Any,
        num_workers: int,
        use_gpu: bool,
        cpus_per_worker: int,
        gpus_per_worker: int | None,
        placement_group: PlacementGroup | None = None,
        force_create_placement_group: bool = False,
    ) -> None:
        super().__init__(settings, use_gpu, cpus_per_worker, gpus_per_worker)
        self._num_workers = num_workers
        if not force_create_placement_group:
            self.placement_group = placement_group or get_current_placement_group()

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        if self.placement_group is not None:
            workers = self._start([-1] * self._num_workers)
        else:
            self._make_group(self.resources_per_worker(), self._num_workers, "PACK")
            workers = self._start(range(self._num_workers))
        return workers, workers[:1]
