# SPDX-License-Identifier: Apache-2.0
"""The actor of a rank.

`execute` runs on the actor's default thread, which is not the main one of the process: a function there cannot set
signal handlers. `abort` has a thread of its own ("control"), so that it reaches a rank that waits in a collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray

from horovod.core import context as contexts
from horovod.elastic.worker.session import Stopped
from horovod.ray import place, ray_logger
from horovod.ray.coordinator import Orders
from horovod.ray.utils import arranged_devices
from horovod.settings import change_environment, current_environment

__all__ = ["STOPPED", "BaseHorovodWorker", "RankWorker"]

STOPPED = "horovod: this worker was told to stop"  # in place of a result

_LOOK_S = 0.02


class BaseHorovodWorker:
    """The methods of a rank's actor. `executable`: the object of start_executable, which lives from call to call."""

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1, name: str = "") -> None:
        self.world_rank = world_rank
        self.world_size = world_size
        self.name = name or f"rank {world_rank}"

    def __repr__(self) -> str:
        """Ray writes it in front of what the actor prints."""
        return self.name

    def node_id(self) -> str:
        """Ray's id of the node."""
        return str(place.whereabouts()["node_id"])

    def hostname(self) -> str:
        return str(place.whereabouts()["name"])

    def get_gpu_ids(self) -> list[str]:
        """The GPUs that Ray gave this actor."""
        return list(place.whereabouts()["gpus"])

    def update_env_vars(self, env_vars: dict[str, str]) -> None:
        """Sets environment variables of this process."""
        change_environment({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """The environment of this process."""
        return current_environment()

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: list[Any] | None = None,
        executable_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Makes the object that functions of `execute` get."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or []), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Calls `func` with the executable."""
        return func(self.executable)

    def set_queue(self, queue: Any) -> None:
        """Sets the queue of this process' ray_logger."""
        ray_logger.configure(queue)


class RankWorker(BaseHorovodWorker):
    """The actor as RayExecutor starts it."""

    _busy = False

    def whereabouts(self) -> dict[str, Any]:
        return place.whereabouts()

    def take_orders(self, orders: Orders) -> None:
        place.take_orders(orders)

    def leave(self) -> None:
        place.leave()

    def call(self, method: str, args: tuple[Any, ...], queue: Any = None) -> Any:
        """Calls a method of this object. What it raises can be pickled, and does not end the actor.

        queue: of ray_logger.
        """
        self._busy = True
        self.set_queue(queue)
        try:
            return getattr(self, method)(*args)
        except Stopped:
            return STOPPED
        except SystemExit as end:
            raise RuntimeError(f"{self.name} called sys.exit({end.code!r})") from end
        except Exception as error:
            try:
                ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
            except Exception:  # the error's own code runs here
                kind = f"{type(error).__module__}.{type(error).__qualname__}"
                raise RuntimeError(f"{self.name} raised {kind}: {error}") from error
            raise
        finally:
            self._busy = False

    def execute_function(
        self, function: Callable[..., Any], args: list[Any] | None, kwargs: dict[str, Any] | None
    ) -> Any:
        return function(*(args or []), **(kwargs or {}))

    def call_elastic(
        self,
        orders: Orders,
        queue: Any,
        devices: tuple[int, int] | None,
        executable: tuple[Any, ...],
        method: str,
        args: tuple[Any, ...],
    ) -> Any:
        """All that a worker of an elastic job does. devices: its slot, and the GPUs of its node."""
        if devices is not None:
            own = [str(one) for one in ray.get_gpu_ids()]
            self.update_env_vars({"CUDA_VISIBLE_DEVICES": arranged_devices(own, *devices)})
        place.take_orders(orders)
        self.start_executable(*executable)
        return self.call(method, args, queue)

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def abort(self, text: str, grace_s: float) -> None:
        """Ends this rank's world: what waits in it raises AbortedError. A rank that is not in it yet may still come."""
        until = time.monotonic() + grace_s
        while self._busy and not contexts.is_initialized() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        if contexts.is_initialized():
            contexts.current().abort(text)
