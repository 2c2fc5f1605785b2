# SPDX-License-Identifier: Apache-2.0
"""Calls of functions that hold collectives run in the order of the program (step 3).

Nodes of two functions may have one name, so they must not be in flight at one time. TensorFlow keeps the order of a
function's stateful nodes, but for those with variables: they wait for the last use of the same variables only. So two
calls of functions that read different variables might run at one time, and two conditions, too.

A graph of TensorFlow 1 keeps no order at all: tensors.py, among_concurrent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps  # the public interface has no way to it

__all__ = ["keep_order"]

_CALLS = frozenset({"Case", "If", "StatefulPartitionedCall", "While"})


@functools.cache
def _sequence() -> Any:
    """Stands for what all of them write; it is in no graph that runs."""
    with tf.Graph().as_default():
        return tf.constant(0)


@functools.cache
def keep_order() -> None:
    """From now on, whenever TensorFlow has traced a function, it puts such calls in order."""
    auto_control_deps.register_acd_resource_resolver(_horovod_uses)


def _horovod_uses(node: Any, reads: Any, writes: Any) -> bool:
    """Adds to what `node` writes. Whether there was something to add.

    Other stateful nodes without variables are in the sequence, too, as they are in TensorFlow's own.
    """
    if _sequence() in writes or not auto_control_deps.op_is_stateful(node):
        return False
    scope = node._control_flow_context
    if scope is not None and not scope.IsXLAContext():
        return False
    is_in_sequence = not reads and not writes and scope is None
    if not is_in_sequence and not (node.type in _CALLS and any(map(_has_collectives, _called_by(node.node_def)))):
        return False
    writes.add(_sequence())
    return True


def _called_by(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        yield from (function.name for function in (value.func, *value.list.func) if function.name)


@functools.lru_cache(maxsize=4096)
def _has_collectives(function: str) -> bool:
    from tensorflow.python.eager import context

    try:
        nodes = context.context().get_function_def(function).node_def
    except tf.errors.NotFoundError:  # of a graph of TensorFlow 1
        return True
    return any(
        node.op.startswith("Horovod")
        or node.attr["call_target_name"].s.startswith(b"horovod")
        or any(map(_has_collectives, _called_by(node)))
        for node in nodes
    )
