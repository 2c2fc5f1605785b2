# SPDX-License-Identifier: Apache-2.0
"""Horovod on Ray: actors are the ranks (docs/ray.md). Nothing else of ours imports this package, or Ray.

runner.py has RayExecutor, strategy.py its placement groups, worker.py a rank's actor, coordinator.py where the ranks
meet, watch.py the wait for them and how it ends; elastic_run.py runs elastic jobs. train_backend.py is for Ray Train,
collective.py for ray.util.collective.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError("horovod.ray needs Ray\nhint: pip install 'ray[train]'", name="ray") from error

from horovod.core.missing import attribute
from horovod.ray.elastic import ElasticRayExecutor
from horovod.ray.runner import RayExecutor
from horovod.ray.worker import BaseHorovodWorker

if TYPE_CHECKING:
    from horovod.ray.collective import register_collective_backend
    from horovod.ray.train_backend import HorovodConfig, HorovodTrainer

__all__ = [
    "BaseHorovodWorker",
    "ElasticRayExecutor",
    "HorovodConfig",
    "HorovodTrainer",
    "RayExecutor",
    "register_collective_backend",
]

# Loaded when first used: these import Ray Train, or Ray's collectives.
_LATER = {
    "HorovodConfig": "train_backend",
    "HorovodTrainer": "train_backend",
    "register_collective_backend": "collective",
}


if not TYPE_CHECKING:  # type checkers refuse other names

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            return attribute(__name__, name)
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
