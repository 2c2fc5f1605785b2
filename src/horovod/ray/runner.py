# SPDX-License-Identifier: Apache-2.0
"""RayExecutor: a function on ranks that are actors of Ray.

    executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
    executor.start()
    results = executor.run(train, args=[0.1])
    executor.shutdown()

The driver has the rendezvous (coordinator.py) and waits for all ranks at once (watch.py). With Ray Client an actor in
the cluster does both.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group

from horovod.core import tracebacks
from horovod.ray.adapter import Adapter, BaseParams
from horovod.ray.coordinator import Coordinator
from horovod.ray.elastic_v2 import ElasticParams
from horovod.ray.strategy import BaseStrategy, ColocatedStrategy, PGStrategy
from horovod.ray.utils import logged_to, packed, setting_of, visible_devices
from horovod.ray.watch import GRACE_S, Crew
from horovod.world.files.whole import write_whole

__all__ = ["Coordinator", "MiniSettings", "RayExecutor", "StaticAdapter", "StaticParams"]


@dataclasses.dataclass
class MiniSettings:
    """The settings of a job on Ray. Any object with some of these fields will do.

    nics: network interfaces between the ranks, by default the one that leads to the driver. timeout_s: how long actors
    may take to start, and ranks to come to init. placement_group_timeout_s: how long Ray may take to find room. The
    others have no effect: actors need no ssh, and each world has a secret of its own.
    """

    nics: Any = None
    verbose: int = 1
    key: Any = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    elastic: bool = False

    @property
    def start_timeout(self) -> float:
        return self.timeout_s


@dataclasses.dataclass
class StaticParams(BaseParams):
    """How many ranks, and where. Raises ValueError."""

    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int = 1
    use_current_placement_group: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.num_workers is None) == (self.num_hosts is None):
            raise ValueError(f"num_workers={self.num_workers} and num_hosts={self.num_hosts}: expected one of the two")
        counts = {"num_workers": self.num_workers, "num_hosts": self.num_hosts}
        counts["num_workers_per_host"] = self.num_workers_per_host
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ValueError(f"{name}={count}: expected 1 or more")

    @property
    def elastic(self) -> bool:
        return False

    @property
    def adapter(self) -> type[StaticAdapter]:
        return StaticAdapter


class StaticAdapter(Adapter):
    """A job of fixed size, in this process. Methods may be called from any thread, but one at a time."""

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
    ) -> None:
        self.settings = settings
        self.num_workers = num_workers
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self.cpus_per_worker = cpus_per_worker
        self.use_gpu = use_gpu
        self.gpus_per_worker = gpus_per_worker
        self.use_current_placement_group = use_current_placement_group
        self.strategy: BaseStrategy | None = None
        self._crew: Crew | None = None

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: list[Any] | None = None,
        executable_kwargs: dict[str, Any] | None = None,
        extra_env_vars: dict[str, str] | None = None,
    ) -> None:
        """Does what Adapter says; nothing is left if it fails. Raises TimeoutError for want of room or of actors."""
        if self.strategy is not None:
            raise RuntimeError("RayExecutor.start: it is started already\nhint: call shutdown() first")
        self.strategy = self._new_strategy()
        try:
            workers, _ = self.strategy.create_workers()
            whereabouts = self._answers(workers)
            self._crew = Crew(workers, [here["where"] for here in whereabouts])
            if extra_env_vars:
                self._ask("update_env_vars", lambda rank: (extra_env_vars,))
            if self.use_gpu:
                devices = visible_devices(
                    [here["node_id"] for here in whereabouts], [one["gpus"] for one in whereabouts]
                )
                self._ask("update_env_vars", lambda rank: ({"CUDA_VISIBLE_DEVICES": devices[rank]},))
            self._form_world(whereabouts)
            if executable_cls is not None:
                given = (executable_cls, executable_args, executable_kwargs)
                self._crew.wait(self._call("start_executable", "start", *given))
        except BaseException:
            self.shutdown()
            raise

    def execute(self, fn: Callable[[Any], Any], callbacks: list[Callable[..., Any]] | None = None) -> list[Any]:
        """Does what Adapter says. Raises the first cause."""
        return self._results("execute", callbacks, fn)

    def run(
        self,
        fn: Callable[..., Any],
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        callbacks: list[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Does what Adapter says. Raises the first cause."""
        return self._results("run", callbacks, fn, args, kwargs)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        callbacks: list[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Does what Adapter says. If one rank fails, the others are ended as in run."""
        if callbacks:
            raise NotImplementedError(
                "RayExecutor.run_remote does not wait, so it cannot call callbacks\nhint: use run(fn, callbacks=...)"
            )
        refs = self._call("execute_function", "run_remote", fn, args, kwargs)
        self._started().watch(refs)
        return refs

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Does what Adapter says. A collective in it would wait for the other ranks."""
        return self._started().wait(self._call("execute", "execute_single", fn, ranks=1))[0]

    def shutdown(self) -> None:
        """Ends the ranks: each leaves its world, so that timelines are complete, and is killed."""
        crew, self._crew = self._crew, None
        workers = self.strategy.workers if self.strategy is not None else None
        if workers and ray.is_initialized():
            if crew is not None and not crew.has_failed:
                left = [worker.leave.remote() for worker in workers]
                ray.wait(left, num_returns=len(left), timeout=GRACE_S)
            for worker in workers:
                ray.kill(worker)
        if crew is not None and crew.coordinator is not None:
            crew.coordinator.close()
        if self.strategy is not None:
            self.strategy.shutdown()
            self.strategy = None

    def _new_strategy(self) -> BaseStrategy:
        resources = (self.use_gpu, self.cpus_per_worker, self.gpus_per_worker)
        group = get_current_placement_group() if self.use_current_placement_group else None
        if self.num_workers is None and group is None:
            assert self.num_hosts is not None
            return ColocatedStrategy(self.settings, self.num_hosts, self.num_workers_per_host, *resources)
        count = self.num_workers or (self.num_hosts or 1) * self.num_workers_per_host
        return PGStrategy(self.settings, count, *resources, group, force_create_placement_group=group is None)

    def _answers(self, workers: list[Any]) -> list[dict[str, Any]]:
        """The whereabouts of all actors, which is what they are asked first. Raises TimeoutError that names some."""
        timeout_s = float(setting_of(self.settings, "timeout_s", 300))
        rank_of = {worker.whereabouts.remote(): rank for rank, worker in enumerate(workers)}
        _, late = ray.wait(list(rank_of), num_returns=len(rank_of), timeout=timeout_s)
        if late:
            dead = [node["NodeManagerAddress"] for node in ray.nodes() if not node["Alive"]]
            raise TimeoutError(
                f"the actors of ranks {', '.join(str(rank_of[ref]) for ref in late)} have not started after "
                f"{timeout_s:g} s{'; Ray has lost the nodes ' + ', '.join(dead) if dead else ''}\n"
                "hint: an import in an actor may take long; create_settings(timeout_s=...) gives more time. "
                "`ray status` shows nodes and free resources"
            )
        return list(ray.get(list(rank_of)))

    def _form_world(self, whereabouts: list[dict[str, Any]]) -> None:
        """Gives the actors a new world, which their next init joins."""
        crew = self._started()
        if crew.coordinator is not None:
            crew.coordinator.close()
        crew.coordinator = Coordinator(self.settings)
        orders = crew.coordinator.orders(whereabouts)
        self._ask("take_orders", lambda rank: (orders[rank],))
        crew.has_failed = False

    def _ask(self, method: str, args_of: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        crew = self._started()
        return crew.wait([getattr(worker, method).remote(*args_of(rank)) for rank, worker in enumerate(crew.workers)])

    def _started(self) -> Crew:
        if self._crew is None:
            raise RuntimeError("RayExecutor: it is not started\nhint: call start() first")
        return self._crew

    def _call(self, method: str, caller: str, *values: Any, ranks: int | None = None, queue: Any = None) -> list[Any]:
        """ObjectRefs of this call of RankWorker in the actors of all ranks, or the first ones."""
        crew = self._started()
        if crew.lost:
            raise RuntimeError(
                f"RayExecutor.{caller}: {next(iter(crew.lost.values()))}\nhint: call shutdown() and start() again"
            )
        if crew.has_failed:
            self._form_world(self._answers(crew.workers))
        names = {"names": ("executable_cls", "executable_args", "executable_kwargs")} if caller == "start" else {}
        given = packed(f"RayExecutor.{caller}", values, **names)
        return [worker.call.remote(method, given, queue) for worker in crew.workers[:ranks]]

    def _results(self, caller: str, callbacks: list[Callable[..., Any]] | None, *values: Any) -> list[Any]:
        crew = self._started()
        if callable(callbacks) or not all(map(callable, callbacks or [])):
            raise TypeError(f"RayExecutor.{caller}: callbacks is {callbacks!r}, expected a list of functions")
        method = "execute" if caller == "execute" else "execute_function"
        with logged_to(callbacks) as (queue, look):
            return crew.wait(self._call(method, caller, *values, queue=queue), look if callbacks else None)


def _has_client() -> bool:
    """True if this process is a Ray Client, outside of the cluster."""
    return bool(ray.util.client.ray.is_connected())


class RayExecutor:
    """Runs functions in ranks that are actors of Ray. The ranks live from start() to shutdown().

    settings: of create_settings(), or any object with such fields. num_workers: ranks, as close to each other as
    possible; or num_hosts: nodes with num_workers_per_host ranks each. In a placement group that exists, the ranks use
    its bundles unless use_current_placement_group is False. gpus_per_worker: 1 by default if use_gpu is True. Raises
    ValueError for arguments that do not fit.

    min_workers: the job is elastic. Then workers start with run() and end with it; `reset_limit`, `cooldown_range` and
    `elastic_timeout` are horovodrun's. override_discovery: the hosts are Ray's nodes; False: of settings.discovery.
    """

    def __init__(
        self,
        settings: Any,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[int, int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        if max_workers is not None and min_workers is None:
            raise ValueError(f"max_workers={max_workers} needs min_workers")
        if min_workers is not None and num_workers is not None:
            raise ValueError(f"min_workers={min_workers} and num_workers={num_workers}: expected one of the two")
        resources: dict[str, Any] = {
            "cpus_per_worker": cpus_per_worker,
            "use_gpu": use_gpu,
            "gpus_per_worker": gpus_per_worker,
        }
        self.settings = settings
        self.params: StaticParams | ElasticParams
        if min_workers is None:
            self.params = StaticParams(
                **resources,
                num_workers=num_workers,
                num_hosts=num_hosts,
                num_workers_per_host=num_workers_per_host,
                use_current_placement_group=use_current_placement_group,
            )
        else:
            self.params = ElasticParams(
                **resources,
                min_workers=min_workers,
                max_workers=max_workers,
                reset_limit=reset_limit,
                cooldown_range=cooldown_range,
                elastic_timeout=elastic_timeout,
                override_discovery=override_discovery,
            )
        self._adapter: Any = None
        self._is_actor = False

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Any = None,
    ) -> MiniSettings:
        """The settings of a job: see MiniSettings. `ssh_str` is written to `ssh_identity_file` if there is no such."""
        if ssh_str and ssh_identity_file and not os.path.exists(ssh_identity_file):
            write_whole(ssh_identity_file, ssh_str, private=True)
        return MiniSettings(
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
            nics=nics,
        )

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: list[Any] | None = None,
        executable_kwargs: dict[str, Any] | None = None,
        extra_env_vars: dict[str, str] | None = None,
    ) -> None:
        """Starts the ranks, with these environment variables, and an object of `executable_cls` in each.

        Blocks until all are there. Raises TimeoutError if Ray has no room for them, or an actor does not start.
        """
        tracebacks.install()
        if self._adapter is not None:
            raise RuntimeError("RayExecutor.start: it is started already\nhint: call shutdown() first")
        if not ray.is_initialized():
            ray.init()
        arguments = dataclasses.asdict(self.params)
        self._is_actor = _has_client()
        if self._is_actor:
            self._adapter = ray.remote(num_cpus=0)(self.params.adapter).remote(self.settings, **arguments)
        else:
            self._adapter = self.params.adapter(self.settings, **arguments)
        try:
            self._ask("start", executable_cls, executable_args, executable_kwargs, extra_env_vars)
        except BaseException:
            self._forget()
            raise

    def execute(self, fn: Callable[[Any], Any], callbacks: list[Callable[..., Any]] | None = None) -> list[Any]:
        """Calls `fn` in each rank with its object of `executable_cls`, or None; the results by rank.

        Blocks and raises as run does.
        """
        return list(self._ask("execute", fn, callbacks))

    def run(
        self,
        fn: Callable[..., Any],
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        callbacks: list[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Calls fn(*args, **kwargs) in each rank; the results by rank.

        callbacks: called here with each value that a rank gives to ray_logger.log. Blocks until all ranks have
        returned, or 3 s after the first failure. Raises the first exception of a rank, caused by its traceback as text;
        RankLostError if an actor has died; TypeError for what cannot be pickled. If all actors live, the next run
        works: their next init joins a new world.
        """
        return list(self._ask("run", fn, args, kwargs, callbacks))

    def run_remote(
        self, fn: Callable[..., Any], args: list[Any] | None = None, kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """Starts run; returns the ObjectRefs of the results. A failure ends the other ranks as in run."""
        return list(self._ask("run_remote", fn, args, kwargs))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn` in rank 0 alone, with its object of `executable_cls`; its result."""
        return self._ask("execute_single", fn)

    def shutdown(self) -> None:
        """Ends the ranks, and frees their resources. Idempotent; start() may follow."""
        if self._adapter is not None:
            self._forget()

    def _ask(self, method: str, *args: Any) -> Any:
        if self._adapter is None:
            raise RuntimeError(f"RayExecutor.{method}: the executor is not started\nhint: call start() first")
        call = getattr(self._adapter, method)
        if not self._is_actor:
            return call(*args)
        try:
            return ray.get(call.remote(*args))
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from error

    def _forget(self) -> None:
        adapter, self._adapter = self._adapter, None
        if not self._is_actor:
            adapter.shutdown()
        elif ray.is_initialized():
            ray.get(adapter.shutdown.remote())
            ray.kill(adapter)
