# SPDX-License-Identifier: Apache-2.0
"""RayExecutor(min_workers=...): its way to elastic jobs (elastic_run.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from horovod.ray.adapter import Adapter, BaseParams
from horovod.ray.discovery import RayHostDiscovery, TestDiscovery
from horovod.ray.elastic_run import ElasticRun, Plan
from horovod.ray.utils import logged_to, packed, setting_of

__all__ = ["ElasticAdapter", "ElasticParams", "RayHostDiscovery", "TestDiscovery"]


@dataclasses.dataclass
class ElasticParams(BaseParams):
    """How many workers, and when a job gives up. Raises ValueError."""

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[int, int] | None = None
    elastic_timeout: int = 600
    override_discovery: bool = True

    @property
    def elastic(self) -> bool:
        return True

    @property
    def adapter(self) -> type[ElasticAdapter]:
        return ElasticAdapter


class ElasticAdapter(Adapter):
    """An elastic job for each call, in this process: its actors live as long as the call."""

    def __init__(
        self,
        settings: Any,
        min_workers: int,
        max_workers: int | None = None,
        use_gpu: bool = False,
        cpus_per_worker: int = 1,
        gpus_per_worker: int | None = None,
        override_discovery: bool = True,
        reset_limit: int | None = None,
        cooldown_range: tuple[int, int] | None = None,
        elastic_timeout: int = 600,
    ) -> None:
        given = None if override_discovery else setting_of(settings, "discovery", None)
        gpus = (gpus_per_worker or 1) if use_gpu else 0
        self._plan = Plan(
            settings,
            given or RayHostDiscovery(use_gpu, cpus_per_worker, gpus_per_worker or 1),
            min_workers,
            max_workers,
            cpus_per_worker,
            gpus,
            elastic_timeout,
            reset_limit,
            cooldown_range,
        )
        self._executable: tuple[Any, ...] = (None, None, None)

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: list[Any] | None = None,
        executable_kwargs: dict[str, Any] | None = None,
        extra_env_vars: dict[str, str] | None = None,
    ) -> None:
        """Keeps these for the workers, which start with the call."""
        self._executable = executable_cls, executable_args, executable_kwargs
        self._plan = dataclasses.replace(self._plan, environment=dict(extra_env_vars or {}))

    def execute(self, fn: Callable[[Any], Any], callbacks: list[Callable[..., Any]] | None = None) -> list[Any]:
        """Does what Adapter says, as an elastic job."""
        return self._results("execute", callbacks, "execute", fn)

    def run(
        self,
        fn: Callable[..., Any],
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        callbacks: list[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Does what Adapter says, as an elastic job."""
        return self._results("run", callbacks, "execute_function", fn, args, kwargs)

    def run_remote(self, fn: Callable[..., Any], *others: Any) -> list[Any]:
        """Raises NotImplementedError."""
        raise NotImplementedError("an elastic job has no run_remote\nhint: use run, on a thread of its own")

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Raises NotImplementedError."""
        raise NotImplementedError("an elastic job has no execute_single\nhint: use execute, and ask for hvd.rank()")

    def shutdown(self) -> None:
        """Does nothing: no worker outlives its call."""

    def _results(self, caller: str, callbacks: list[Callable[..., Any]] | None, method: str, *values: Any) -> list[Any]:
        given = packed(f"RayExecutor.{caller}", values)
        with logged_to(callbacks) as (queue, look):
            return ElasticRun(self._plan, (self._executable, method, given), queue).results(look)
