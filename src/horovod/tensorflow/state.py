# SPDX-License-Identifier: Apache-2.0
"""Equal start values on all ranks: variables, and any Python object, from one rank to the others.

Also in graphs of TensorFlow 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.core import context as contexts
from horovod.core import objects, pickling
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import ops

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assigns the root's values to `variables`, all as one operation; strings, eagerly, as an object.

    In a graph of TensorFlow 1: returns the node that does this. `inplace` is accepted for old scripts. Raises
    FailedPreconditionError if the ranks' variables differ in number, shape or dtype. Without variables (a model that is
    not built has none) it does nothing.
    """
    strings = []
    if tf.executing_eagerly() and isinstance(variables, (list, tuple)):
        strings = [variable for variable in variables if getattr(variable, "dtype", None) == tf.string]
        variables = [variable for variable in variables if getattr(variable, "dtype", None) != tf.string]
    assigned = ops.broadcast_(variables, root_rank, "broadcast_variables", process_set)
    contexts.note_replicas(tf.TensorShape(variable.shape).num_elements() or 0 for variable in variables)
    if strings:
        values = [variable.numpy() for variable in strings]
        received = objects.broadcast_object(values, root_rank, "broadcast_variables.strings", process_set)
        for variable, value in zip(strings, received, strict=True):
            variable.assign(value)
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_global_variables(root_rank: int) -> Any:
    """The node that assigns the root's values to all global variables.

    For graphs of TensorFlow 1; raises RuntimeError eagerly, if there are no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution\n"
            "hint: hvd.broadcast_variables(<model/optimizer variables>)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all ranks the root's global variables once a session of TensorFlow 1 has been made.

    These are random start values, or what the root has restored from a checkpoint. `device`: where the nodes are
    placed.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Before the graph is finalized."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast."""
        session.run(self.bcast_op)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Makes a function obj -> the root's obj, for graphs of TensorFlow 1.

    The nodes are made now, once, and run in `session` (the default one) at every call.
    """
    name = name or "object"
    size = tf.compat.v1.placeholder(tf.int64, [1])
    data = tf.compat.v1.placeholder(tf.uint8, [None])
    size_node = ops.broadcast(size, root_rank, f"{name}.sz", process_set=process_set)
    data_node = ops.broadcast(data, root_rank, f"{name}.t", process_set=process_set)

    def broadcast(obj: Any) -> Any:
        run = (session or tf.compat.v1.get_default_session() or tf.compat.v1.Session()).run
        is_root = contexts.rank() == root_rank
        payload = np.frombuffer(pickling.dumps(obj), np.uint8) if is_root else np.empty(0, np.uint8)
        length = run(size_node, {size: [len(payload)]})[0]
        received = run(data_node, {data: payload if is_root else np.empty(length, np.uint8)})
        return obj if is_root else pickling.loads(received.tobytes())

    return broadcast


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's `obj` on every rank; the other ranks' is ignored.

    `session`: accepted for old scripts; objects travel beside the graph.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's `obj`, in rank order. `session` as in broadcast_object."""
    return objects.allgather_object(obj, name, process_set=process_set)
