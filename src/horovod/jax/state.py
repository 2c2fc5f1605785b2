# SPDX-License-Identifier: Apache-2.0
"""Equal start values on all ranks: pytrees of parameters and of optimizer state, and any Python object."""

from __future__ import annotations

from typing import Any

import jax
from jax import tree_util

from horovod.core import context
from horovod.core.exceptions import InvalidRequestError
from horovod.core.objects import allgather_object, broadcast_object, check_same_keys
from horovod.core.operations import run_all
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.jax.shim import is_eager
from horovod.jax.tensors import collectives

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int = 0, *, process_set: ProcessSet = global_process_set) -> Any:
    """The pytree of the root, a world rank, on every rank.

    Arrays and keys of jax.random are broadcast under their path in the tree; numbers, strings and other objects are
    sent along. Raises HorovodInternalError if the ranks' trees differ, or their arrays' shapes or dtypes; ValueError
    inside of compiled functions.
    """
    return _broadcast(params, root_rank, "broadcast_parameters", process_set)


def broadcast_optimizer_state(state: Any, root_rank: int = 0, *, process_set: ProcessSet = global_process_set) -> Any:
    """As broadcast_parameters, of the state of an optimizer, such as optax' `optimizer.init(params)`."""
    return _broadcast(state, root_rank, "broadcast_optimizer_state", process_set)


def _broadcast(tree: Any, root_rank: int, operation: str, process_set: ProcessSet) -> Any:
    if not is_eager():
        raise InvalidRequestError(
            f"{operation} cannot be part of a compiled function\nhint: call it before; hvd.broadcast can be compiled"
        )
    pairs, structure = tree_util.tree_flatten_with_path(tree)
    keys = [f"{operation}{tree_util.keystr(path)}" for path, _ in pairs]
    values = [value for _, value in pairs]
    tensors = [index for index, value in enumerate(values) if isinstance(value, jax.Array) or hasattr(value, "dtype")]
    shown = [key if index in set(tensors) else f"{key} (no tensor)" for index, key in enumerate(keys)]
    check_same_keys(operation, shown, process_set)
    context.note_replicas(values[index].size for index in tensors)

    def start(index: int) -> Any:
        return collectives.broadcast(values[index], root_rank, keys[index], process_set, False)

    for index, result in zip(tensors, run_all(start, tensors), strict=True):
        values[index] = result
    objects = {index: value for index, value in enumerate(values) if index not in set(tensors)}
    if objects:
        for index, value in broadcast_object(objects, root_rank, f"{operation}.objects", process_set).items():
            values[index] = value
    return structure.unflatten(values)
