# SPDX-License-Identifier: Apache-2.0
"""A process of Ray's as a rank: it says where it is, and takes the orders that make it one (coordinator.py)."""

from __future__ import annotations

import os
import socket
from typing import Any

import ray

from horovod.core import basics
from horovod.ray.coordinator import Orders
from horovod.settings import change_environment, environment_of
from horovod.world.network import machine
from horovod.world.secret import SecretFile

__all__ = ["leave", "take_orders", "whereabouts"]

_secret: SecretFile | None = None  # which init reads


def whereabouts() -> dict[str, Any]:
    """Where this process is: its node of Ray, its machine, its GPUs, and what texts say of it."""
    return {
        "node_id": ray.get_runtime_context().get_node_id(),
        "name": socket.gethostname(),
        "machine": machine(),
        "gpus": [str(one) for one in ray.get_gpu_ids()],
        "where": f"node {ray.util.get_node_ip_address()}, pid {os.getpid()}",
    }


def take_orders(orders: Orders) -> None:
    """Makes this process a rank of a new world, which its next init joins. It leaves the one in which it is."""
    global _secret
    leave()
    if _secret is not None:
        _secret.close()
    _secret = SecretFile(orders.secret)
    change_environment({**orders.environment, **environment_of(secret_file=_secret.path)})


def leave() -> None:
    """Leaves the world, if this process is in one. Operations that are under way fail."""
    basics.shutdown()
