# SPDX-License-Identifier: Apache-2.0
"""Which gradients of a graph are the ranks' average already (step 2 of a gradient's way).

A gradient is, if it was computed from one that a tape or an optimizer has reduced: by clipping, for example.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

__all__ = ["is_reduced", "mark_reduced"]


_reduced: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # names of tensors, by graph


def mark_reduced(gradients: Iterable[Any]) -> None:
    """Remembers these gradients of the current graph. Does nothing eagerly."""
    if tf.executing_eagerly():
        return
    for gradient in gradients:
        if gradient is not None:
            tensor = _tensor(gradient)
            _reduced.setdefault(tensor.graph, set()).add(tensor.name)


def is_reduced(gradient: Any) -> bool:
    """True if a gradient of a graph needs no reduction: it is None, or comes from one that was reduced."""
    if gradient is None:
        return True
    waiting = [_tensor(gradient)]
    seen = set()
    while waiting:
        tensor = waiting.pop()
        graph = getattr(tensor, "graph", None)
        if graph is None:  # an eager tensor that a function has captured
            continue
        if tensor.name in _reduced.get(graph, ()):
            return True
        if tensor.op in seen:
            continue
        seen.add(tensor.op)
        waiting += tensor.op.inputs
        if tensor.op.type == "Placeholder":
            waiting += [outer for outer, inner in getattr(graph, "captures", ()) if inner is tensor]
    return False


def _tensor(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values
    return gradient if hasattr(gradient, "op") else tf.convert_to_tensor(gradient)
