# SPDX-License-Identifier: Apache-2.0
"""ElasticRayExecutor, the older way to elastic jobs on Ray; the newer one is RayExecutor(min_workers=...).

In a script:

    settings = ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=4)
    executor = ElasticRayExecutor(settings)
    executor.start()
    results = executor.run(train)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ray

from horovod.core import tracebacks
from horovod.ray import discovery
from horovod.ray.elastic_v2 import ElasticAdapter
from horovod.ray.utils import setting_of
from horovod.runner.elastic.settings import ElasticSettings

__all__ = ["ElasticRayExecutor", "RayHostDiscovery", "TestDiscovery"]


class RayHostDiscovery(discovery.RayHostDiscovery):
    """The nodes of the cluster, with a slot for each worker that fits."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1) -> None:
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)


class TestDiscovery(discovery.TestDiscovery, RayHostDiscovery):
    """Nodes that come and go, for tests of elastic scripts."""

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int = 1,
        verbose: bool = True,
        _graceful: bool = True,
    ) -> None:
        super().__init__(
            min_hosts, max_hosts, change_frequency_s, use_gpu, cpus_per_slot, gpus_per_slot, verbose, _graceful
        )


class ElasticRayExecutor:
    """Runs a function as an elastic job: workers may be lost, and join, while it trains with hvd.elastic.

    settings: of create_settings(). override_discovery: the hosts are the nodes of the cluster; if False, those of
    settings.discovery. env_vars: of all workers.
    """

    def __init__(
        self,
        settings: Any,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: dict[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        if gpus_per_slot is not None and (not use_gpu or gpus_per_slot < 1):
            raise ValueError(f"gpus_per_slot={gpus_per_slot}, use_gpu={use_gpu}: expected 1 or more, with use_gpu=True")
        self.settings = settings
        self._adapter = ElasticAdapter(
            settings,
            min_workers=setting_of(settings, "min_num_proc", 1),
            max_workers=setting_of(settings, "max_num_proc", None),
            use_gpu=use_gpu,
            cpus_per_worker=cpus_per_slot,
            gpus_per_worker=gpus_per_slot,
            override_discovery=override_discovery,
            reset_limit=setting_of(settings, "reset_limit", None),
            cooldown_range=setting_of(settings, "cooldown_range", None),
            elastic_timeout=setting_of(settings, "elastic_timeout", 600),
        )
        self._env_vars = dict(env_vars or {})

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: int = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Any = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """The settings of an elastic job. timeout_s: how much later than the first worker another one may be ready."""
        for name, old, new in (("min_np", min_np, "min_num_proc"), ("max_np", max_np, "max_num_proc")):
            if old is not None:
                warnings.warn(f"{name} is an old name\nhint: use {new}", DeprecationWarning, stacklevel=2)
        settings = ElasticSettings(
            discovery=kwargs.pop("discovery", None),
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            elastic_timeout=elastic_timeout,
            reset_limit=reset_limit,
            ssh_identity_file=ssh_identity_file,
            nics=nics,
            **kwargs,
        )
        settings.timeout_s = timeout_s  # type: ignore[attr-defined]
        return settings

    def start(self) -> None:
        """Connects to Ray, or starts it. The workers start with run()."""
        tracebacks.install()
        if not ray.is_initialized():
            ray.init()
        self._adapter.start(extra_env_vars=self._env_vars)

    def run(self, worker_fn: Callable[[], Any], callbacks: list[Callable[..., Any]] | None = None) -> list[Any]:
        """Calls `worker_fn` in each worker; the results of those that were there at the end, by rank.

        callbacks: called here with each value that a worker gives to ray_logger.log. Raises the exception of a script
        that has ended the job, or RuntimeError.
        """
        return self._adapter.run(worker_fn, callbacks=callbacks)
