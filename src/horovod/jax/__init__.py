# SPDX-License-Identifier: Apache-2.0
"""Horovod for JAX.

    import horovod.jax as hvd

    hvd.init()
    params = hvd.broadcast_parameters(params, root_rank=0)
    optimizer = hvd.DistributedGradientTransformation(optax.adam(1e-3))

    @jax.jit
    def step(params, state, batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        updates, state = optimizer.update(gradients, state, params)   # the ranks' average of the gradients
        return optax.apply_updates(params, updates), state, loss

and `horovodrun -np 4 python train.py` starts it. Every operation takes a pytree of arrays, and works inside and outside
of jax.jit.
"""

from typing import TYPE_CHECKING, Any

from horovod.core import basics
from horovod.core.basics import *  # noqa: F403
from horovod.core.exceptions import HorovodInternalError
from horovod.core.missing import attribute
from horovod.core.process_sets import ProcessSet, add_process_set, global_process_set
from horovod.jax import elastic as elastic
from horovod.jax import ops
from horovod.jax.compression import Compression
from horovod.jax.joining import join, remove_process_set, uneven_data
from horovod.jax.ops import *  # noqa: F403
from horovod.jax.optimizer import DistributedGradientTransformation, allreduce_gradients, grad, value_and_grad
from horovod.jax.replicas import check_replicas
from horovod.jax.state import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters

if TYPE_CHECKING:
    from horovod.jax import nnx as nnx
    from horovod.jax.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
else:  # type checkers refuse other names

    def __getattr__(name: str) -> Any:
        if name == "SyncBatchNorm":  # the one part that needs flax
            from horovod.jax.sync_batch_norm import SyncBatchNorm

            return SyncBatchNorm
        return attribute(__name__, name)  # nnx, which needs flax as well, and others


__all__ = [
    "Compression",
    "DistributedGradientTransformation",
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "allgather_object",
    "allreduce_gradients",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_replicas",
    "global_process_set",
    "grad",
    "join",
    "remove_process_set",
    "uneven_data",
    "value_and_grad",
]
__all__ += basics.__all__ + ops.__all__


def __dir__() -> list[str]:
    return [*__all__, "SyncBatchNorm", "elastic", "nnx"]
