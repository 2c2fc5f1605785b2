# SPDX-License-Identifier: Apache-2.0
"""Helpers of Horovod's that scripts may call: network interfaces, a function over many items, GPUs of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import ray

from horovod.settings import environment_of

__all__ = ["detect_nics", "map_blocking", "nics_to_env_var", "setting_of", "visible_devices"]

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
