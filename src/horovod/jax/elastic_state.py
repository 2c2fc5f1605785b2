# SPDX-License-Identifier: Apache-2.0
"""JaxState: pytrees of arrays, objects of flax.nnx and plain values that training continues from."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax
import numpy as np
from jax import tree_util

from horovod.core import objects
from horovod.core.arrays import collectives
from horovod.core.context import rank
from horovod.core.operations import run_all
from horovod.core.process_sets import global_process_set
from horovod.elastic.state.handlers import HandledState, StateHandler
from horovod.jax.shim import forget_failures

__all__ = ["JaxState"]


class JaxState(HandledState):
    """A state of pytrees, such as params and opt_state, and of plain values: `state.params = new_params`.

    Each keyword becomes an attribute. Arrays are copied, so a step may donate them. A model or an optimizer of flax.nnx
    keeps its identity; its random streams are restored, but stay each rank's own. The ranks' trees need not be alike:
    all of them get rank 0's.
    """

    def __init__(self, params: Any = None, opt_state: Any = None, **kwargs: Any) -> None:
        values = {"params": params, "opt_state": opt_state, **kwargs}
        handlers = {name: _NnxHandler(value, name) for name, value in values.items() if _is_of_nnx(value)}
        plain = {name: value for name, value in values.items() if name not in handlers}
        super().__init__(_broadcast_values, rank, handlers, **plain)

    def save(self) -> None:
        # The values of a step that fails must not replace the saved ones.
        leaves = [leaf for value in self._values().values() for leaf in _leaves(value)]
        jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array)])
        super().save()

    def restore(self) -> None:
        forget_failures()
        super().restore()


class _NnxHandler(StateHandler):
    """For what flax.nnx calls an object: modules, optimizers, metrics."""

    def __init__(self, value: Any, name: str) -> None:
        super().__init__(value)
        self._name = name
        self._saved: Any = None
        self.save()

    def finish(self) -> None:
        jax.block_until_ready(tree_util.tree_leaves(_nnx().state(self.value)))

    def save(self) -> None:
        self._saved = _copied(_nnx().state(self.value))

    def restore(self) -> None:
        _nnx().update(self.value, _copied(self._saved))

    def sync(self) -> None:
        nnx = _nnx()
        shared = nnx.state(self.value, nnx.Not(nnx.RngState))
        nnx.update(self.value, _broadcast_tree(shared, f"elastic.{self._name}"))


@dataclasses.dataclass(frozen=True)
class _Sent:
    """Stands for an array that is sent beside the tree. `kind`: of a key of jax.random."""

    shape: tuple[int, ...]
    dtype: Any
    is_of_jax: bool
    kind: str | None


def _broadcast_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _broadcast_tree(value, f"elastic.{name}") for name, value in values.items()}


def _broadcast_tree(tree: Any, name: str) -> Any:
    """Rank 0's tree on every rank. The structure is sent first, so the other ranks need not know it."""
    is_root = rank() == 0
    leaves = _leaves(tree) if is_root else []
    described = None
    if is_root:
        described = _rebuilt(tree, [_described(leaf) for leaf in leaves]) if len(leaves) else tree
    described = objects.broadcast_object(described, 0, f"{name}.structure")
    stands_for = _leaves(described)
    places = [place for place, leaf in enumerate(stands_for) if isinstance(leaf, _Sent)]
    buffers = {place: _bytes_of(leaves[place]) if is_root else _room_for(stands_for[place]) for place in places}

    def start(place: int) -> Any:
        return collectives.broadcast(buffers[place], 0, f"{name}.{place}", global_process_set, True)

    run_all(start, places)
    if is_root or not places:
        return tree if is_root else described
    return _rebuilt(
        described, [_array(leaf, buffers[place]) if place in buffers else leaf for place, leaf in enumerate(stands_for)]
    )


def _leaves(tree: Any) -> list[Any]:
    try:
        return list(tree_util.tree_leaves(tree))
    except (TypeError, ValueError):  # for example a dict whose keys cannot be sorted: no tree, but a plain value
        return [tree]


def _rebuilt(tree: Any, leaves: list[Any]) -> Any:
    try:
        structure = tree_util.tree_structure(tree)
    except (TypeError, ValueError):
        return leaves[0]
    return structure.unflatten(leaves)


def _copied(tree: Any) -> Any:
    return tree_util.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def _described(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(leaf)
        return _Sent(data.shape, data.dtype, True, str(jax.random.key_impl(leaf)))
    if isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject):
        return _Sent(leaf.shape, leaf.dtype, isinstance(leaf, jax.Array), None)
    return leaf


def _bytes_of(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.array(leaf, order="C").reshape(-1).view(np.uint8)


def _room_for(sent: _Sent) -> Any:
    return np.empty(sent.shape, sent.dtype).reshape(-1).view(np.uint8)


def _array(sent: _Sent, data: Any) -> Any:
    array = data.view(sent.dtype).reshape(sent.shape)
    if sent.kind is not None:
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=sent.kind)
    return jax.numpy.asarray(array) if sent.is_of_jax else array


def _is_of_nnx(value: Any) -> bool:
    """Never imports flax: a value of it has done that."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return False
    kind = nnx.Pytree if hasattr(nnx, "Pytree") else nnx.Object  # flax before 0.12
    return isinstance(value, kind)


def _nnx() -> Any:
    return sys.modules["flax.nnx"]
