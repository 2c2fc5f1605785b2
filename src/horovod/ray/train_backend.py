# SPDX-License-Identifier: Apache-2.0
"""Horovod as a backend of Ray Train: its workers are the ranks.

    trainer = HorovodTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=2))
    result = trainer.fit()

Checkpoints, retries, Tune, Ray Data and elastic numbers of workers are Ray Train's. Each group of workers that it
starts, also after a failure, gets a world of its own. The rendezvous is in Ray Train's controller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ray
import ray.train
from ray.train import BackendConfig
from ray.train.backend import Backend

from horovod.ray import place
from horovod.ray.coordinator import Coordinator
from horovod.ray.watch import GRACE_S

# Ray Train has two versions. The second one has this name, if it is on.
if hasattr(ray.train, "UserCallback"):
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
else:
    from ray.train.data_parallel_trainer import DataParallelTrainer

__all__ = ["HorovodConfig", "HorovodTrainer"]

_coordinators: dict[int, Coordinator] = {}  # by the id of the group of workers, in the controller


@dataclasses.dataclass
class HorovodConfig(BackendConfig):  # type: ignore[misc]
    """For any trainer of Ray Train that takes a `backend_config`.

    nics: network interfaces between the ranks, by default the one that leads to the controller. timeout_s: how long
    ranks wait for each other in init.
    """

    nics: Any = None
    timeout_s: float = 300

    @property
    def backend_cls(self) -> type[Backend]:
        return _HorovodBackend


class _HorovodBackend(Backend):  # type: ignore[misc]
    """Ray Train has one object of it in a process."""

    share_cuda_visible_devices = True  # so that the local rank selects a GPU

    def on_start(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """Tells each worker its place. init is the training function's own call."""
        coordinator = _coordinators[id(worker_group)] = Coordinator(backend_config)
        orders = coordinator.orders(worker_group.execute(place.whereabouts))
        ray.get([worker_group.execute_single_async(rank, place.take_orders, one) for rank, one in enumerate(orders)])

    def on_shutdown(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """Has the workers leave their world, as far as they live: what waits in it fails."""
        coordinator = _coordinators.pop(id(worker_group), None)
        try:
            left = worker_group.execute_async(place.leave)
            ray.wait(left, num_returns=len(left), timeout=GRACE_S)
        finally:
            if coordinator is not None:
                coordinator.close()


class HorovodTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Runs `train_loop_per_worker` in ranks. It calls hvd.init() itself.

    horovod_config: None is HorovodConfig(). The others are those of Ray Train's DataParallelTrainer.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        scaling_config: Any = None,
        run_config: Any = None,
        datasets: dict[str, Any] | None = None,
        dataset_config: Any = None,
        **others: Any,
    ) -> None:
        super().__init__(
            train_loop_per_worker=train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=horovod_config or HorovodConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            **others,
        )
