# SPDX-License-Identifier: Apache-2.0
"""Helpers of Horovod's that scripts may call: network interfaces, a function over many items, GPUs of a node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import ray
from ray.util.queue import Queue

from horovod.launcher.function.unpicklable import named
from horovod.settings import environment_of

__all__ = [
    "arranged_devices",
    "detect_nics",
    "logged_to",
    "map_blocking",
    "nics_to_env_var",
    "packed",
    "setting_of",
    "visible_devices",
]

T = TypeVar("T")


def setting_of(settings: Any, name: str, default: Any) -> Any:
    """A field of any settings object, or the default if the object does not have it or has None there."""
    value = getattr(settings, name, None)
    return default if value is None else value


def detect_nics(settings: Any, all_host_names: Sequence[str], node_workers: Sequence[Any] | None = None) -> Any:
    """The network interfaces that the settings name; None: each rank takes the one that leads to the rendezvous."""
    return setting_of(settings, "nics", None)


def nics_to_env_var(nics: Iterable[str] | str | None) -> dict[str, str]:
    """The environment variables that have ranks use the first of these interfaces that their host has."""
    if not nics:
        return {}
    return environment_of(network_interface=nics if isinstance(nics, str) else ",".join(sorted(nics)))


def map_blocking(fn: Callable[[T], Any], collection: Iterable[T]) -> list[Any]:
    """Waits for the ObjectRefs that `fn` returns for the items; their values in order."""
    return list(ray.get([fn(item) for item in collection]))


def visible_devices(nodes: Sequence[str], devices: Sequence[Sequence[str]]) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each rank; empty: it stays as it is.

    All GPUs of the job on that node, so that ranks of a node reach each other's, and the local rank selects one of the
    rank's own. If ranks share a GPU, each sees its own alone, and its index there is 0.

    nodes: the node of each rank. devices: the GPUs that Ray gave it.
    """
    result = [""] * len(nodes)
    for node in dict.fromkeys(nodes):
        ranks = [rank for rank, other in enumerate(nodes) if other == node]
        most = max((len(devices[rank]) for rank in ranks), default=0)
        # The first GPUs of all ranks, then the second ones.
        ordered = [devices[rank][index] for index in range(most) for rank in ranks if index < len(devices[rank])]
        shared = len(set(ordered)) < len(ordered)
        for rank in ranks:
            result[rank] = ",".join(devices[rank] if shared else ordered)
    return result


def arranged_devices(own: Sequence[str], slot: int, count: int) -> str:
    """CUDA_VISIBLE_DEVICES of a worker whose local rank is its slot: all GPUs of the node, its own one at that place.

    own: the GPUs that Ray gave the worker. count: the GPUs of the node. Other names than 0 to count - 1 stay as they
    are.
    """
    names = [str(index) for index in range(count)]
    if not own or own[0] not in names or slot >= count:
        return ",".join(own)
    place = names.index(own[0])
    names[place], names[slot] = names[slot], names[place]
    return ",".join(names)


def packed(caller: str, values: tuple[Any, ...], names: Sequence[str] = ("fn", "args", "kwargs")) -> Any:
    """The ObjectRef of a call, whose arguments have these names. Raises TypeError that names what cannot be pickled."""
    with named(caller, dict(zip(names, values, strict=False)), ray.cloudpickle.dumps):
        return ray.put(values)


@contextlib.contextmanager
def logged_to(callbacks: Sequence[Callable[..., Any]] | None) -> Iterator[tuple[Any, Callable[[], None]]]:
    """A queue for ray_logger, None without callbacks, and a function that gives them what is in it."""
    if not callbacks:
        yield None, lambda: None
        return
    queue = Queue(actor_options={"num_cpus": 0})

    def drain() -> None:
        for _ in range(queue.qsize()):
            value = queue.get()
            for callback in callbacks:
                callback(value)

    try:
        yield queue, drain
        drain()
    finally:
        queue.shutdown(force=True)
