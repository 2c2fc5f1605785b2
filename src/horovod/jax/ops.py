# SPDX-License-Identifier: Apache-2.0
"""The operations for JAX: core/operations_api.py over pytrees of arrays.

They run at once, as those of the other frameworks, or become a part of the function that jax.jit compiles. There they
can be differentiated and mapped (autograd.py), and the shapes of results are fixed: an allgather needs the same number
of rows from every rank, an alltoall even parts. Forms with _async have no meaning in a compiled function.

Arrays cannot be changed, so there are no operations in place.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.collectives import Reduction, resolved
from horovod.core.context import LOCAL_ERRORS
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    REDUCESCATTER,
    SYNC,
    Adasum,
    Average,
    BitAnd,
    BitOr,
    BitXor,
    Max,
    Min,
    Product,
    Sum,
)
from horovod.core.operations import poll, synchronize
from horovod.core.operations_api import Operations
from horovod.core.process_sets import ProcessSet, checked_root, lasting_number, number_of
from horovod.core.requests import check_adasum_ranks, check_name, check_reduction, check_tensors
from horovod.core.tensors import check_complex, check_complex_rows, of_each, unsupported_dtype
from horovod.jax import autograd as autograd  # registers them
from horovod.jax import patches
from horovod.jax.compiled import Watch, bind
from horovod.jax.shim import has_tokens, is_eager, is_outermost
from horovod.jax.tensors import ONE_TENSOR, carried, collectives, flat, not_an_array, with_arrays
from horovod.jax.traces import refuse

__all__ = [
    "Adasum",
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]

patches.apply()


class JaxOperations(Operations[Any]):
    """The operations over pytrees."""

    def __init__(self) -> None:
        self.collectives = collectives

    def _reduce(self, tensor: Any, name: str | None, how: Reduction) -> Any:
        if is_eager():
            return super()._reduce(tensor, name, how)
        return traced(tensor, ALLREDUCE, "allreduce", name, how)

    def _reduce_group(self, tensors: Sequence[Any], name: str | None, how: Reduction) -> Any:
        if is_eager():
            return super()._reduce_group(tensors, name, how)
        return traced(_listed(tensors, "grouped_allreduce", name, how[-1]), ALLREDUCE, "grouped_allreduce", name, how)

    def _gather(self, tensor: Any, name: str | None, process_set: ProcessSet) -> Any:
        if is_eager():
            return super()._gather(tensor, name, process_set)
        return traced(tensor, ALLGATHER, "allgather", name, _among(process_set))

    def _gather_group(self, tensors: Sequence[Any], name: str | None, process_set: ProcessSet) -> Any:
        if is_eager():
            return super()._gather_group(tensors, name, process_set)
        listed = _listed(tensors, "grouped_allgather", name, process_set)
        return traced(listed, ALLGATHER, "grouped_allgather", name, _among(process_set))

    def _scatter(self, tensor: Any, name: str | None, how: Reduction) -> Any:
        if is_eager():
            return super()._scatter(tensor, name, how)
        return traced(tensor, REDUCESCATTER, "reducescatter", name, how)

    def _scatter_group(self, tensors: Sequence[Any], name: str | None, how: Reduction) -> Any:
        if is_eager():
            return super()._scatter_group(tensors, name, how)
        listed = _listed(tensors, "grouped_reducescatter", name, how[-1])
        return traced(listed, REDUCESCATTER, "grouped_reducescatter", name, how)

    def _copy(self, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        if is_eager():
            return super()._copy(tensor, root_rank, name, process_set)
        return traced(tensor, BROADCAST, "broadcast", name, _among(process_set), root_rank)

    def _exchange(self, tensor: Any, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        if is_eager():
            return super()._exchange(tensor, splits, name, process_set)
        if splits is not None:
            why = (
                "with splits it cannot be part of a compiled function, whose shapes are fixed\n"
                "hint: call it outside of jax.jit, or send even parts, without splits"
            )
            refuse("alltoall", name, NotImplementedError(why), process_set)
        return traced(tensor, ALLTOALL, "alltoall", name, _among(process_set))

    def _meet(self, process_set: ProcessSet) -> None:
        if is_eager():
            super()._meet(process_set)
        else:
            bind([], BARRIER, "barrier", None, lasting_number(process_set))

    def _compressed(self, tensors: Any, compression: Any, call: Any, run: Any) -> Any:
        if not self._is_group(tensors):
            return run(tensors)
        leaves, structure = flat(list(tensors))
        return structure.unflatten(
            super()._compressed(
                with_arrays(leaves), compression, call, lambda sent: flat(run(structure.unflatten(sent)))[0]
            )
        )

    def _refuse(self, label: str, name: str | None, why: str, process_set: ProcessSet) -> None:
        if is_eager():
            super()._refuse(label, name, why, process_set)
        refuse(label, name, InvalidRequestError(why), process_set)


def _among(process_set: ProcessSet | None) -> Reduction:
    """For operations that reduce nothing."""
    return (Sum, None, 1.0, 1.0, process_set)


def _listed(tensors: Any, label: str, name: str | None, process_set: ProcessSet | None) -> list[Any]:
    if not isinstance(tensors, (list, tuple)):
        why = f"a grouped operation takes a list of tensors, got {type(tensors).__name__}"
        refuse(label, name, TypeError(why), process_set)
    return list(tensors)


def traced(
    tree: Any,
    kind: int,
    label: str,
    name: str | None,
    how: Reduction,
    root_rank: int = -1,
    ordered: bool = True,
    keys: Sequence[str] = (),
    watch: Watch | None = None,
) -> Any:
    """An operation on a tree's leaves, as a part of what is traced.

    Raises ValueError, TypeError or NotImplementedError, and tells the peers.
    """
    leaves, structure = flat(tree, copied=kind == BROADCAST)
    moved = [carried(leaf) for leaf in leaves] if kind in (ALLGATHER, ALLTOALL, BROADCAST) else []
    try:
        tensors = of_each(_array, [sent for sent, _ in moved] if moved else leaves)
        op, prescale, postscale, number = resolved(how)
        are_complex = [jnp.iscomplexobj(tensor) for tensor in tensors]
        if any(are_complex):
            check_complex(op)
            tensors = [_pairs(label, kind, tensor) for tensor in tensors]
        _check(kind, label, name, tensors, op, how[-1])
        root = checked_root(contexts.current(), root_rank, number) if kind == BROADCAST else -1
    except LOCAL_ERRORS as error:
        refuse(label, name, error, how[-1])
    results = bind(
        tensors,
        kind,
        label,
        name,
        lasting_number(how[-1]),
        op=operator.index(op),
        prescale=prescale,
        postscale=postscale,
        root_rank=root,
        ordered=ordered,
        keys=keys,
        watch=watch,
    )
    results = [
        lax.complex(result[..., 0], result[..., 1]) if is_complex else result
        for result, is_complex in zip(results, are_complex, strict=True)
    ]
    if moved:
        results = [restore(result) for result, (_, restore) in zip(results, moved, strict=True)]
    return structure.unflatten(results)


def _pairs(label: str, kind: int, tensor: Any) -> Any:
    """Complex numbers as pairs of real ones, with a last dimension of 2; other tensors as they are."""
    if not jnp.iscomplexobj(tensor):
        return tensor
    if kind in (ALLGATHER, ALLTOALL, REDUCESCATTER):
        check_complex_rows(label, tensor.shape)
    return jnp.stack([tensor.real, tensor.imag], -1)


def reduced_for_use(
    tensors: list[Any], name: str, how: Reduction, keys: Sequence[str] = (), watch: Watch | None = None
) -> list[Any]:
    """grouped_allreduce for a caller that uses the results: no effect makes the compiled function start slowly.

    But an inner function, which may be called twice, has one: that alone gives its calls an order. `keys`, `watch`: as
    of bind.
    """
    if is_eager():
        return collectives.grouped_allreduce(tensors, name, how, False, SYNC).wait()  # type: ignore[no-any-return]
    ordered = has_tokens and not is_outermost(tensors)
    return traced(  # type: ignore[no-any-return]
        tensors, ALLREDUCE, "grouped_allreduce", name, how, ordered=ordered, keys=keys, watch=watch
    )


def _array(leaf: Any) -> Any:
    if isinstance(leaf, (bool, int, float, complex)) or (hasattr(leaf, "dtype") and not hasattr(leaf, "todense")):
        return jnp.asarray(leaf)
    raise TypeError(not_an_array(leaf))


def _meta(tensor: Any) -> tuple[int, tuple[int, ...]]:
    if tensor.dtype.name not in native.DTYPE_NAMES:
        raise unsupported_dtype(tensor.dtype)
    return native.DTYPE_NAMES.index(tensor.dtype.name), tuple(tensor.shape)


def _check(
    kind: int, label: str, name: str | None, tensors: Sequence[Any], op: Any, process_set: ProcessSet | None
) -> None:
    check_name(name)
    if not tensors:
        raise InvalidRequestError("expected a pytree with at least one tensor, got an empty one")
    metas = of_each(_meta, tensors)
    check_tensors(kind, label, tuple(metas))
    if kind in (ALLREDUCE, REDUCESCATTER):
        check_reduction(kind, op, [dtype for dtype, _ in metas])
    members, _ = contexts.current().place(number_of(process_set))
    if op == Adasum:
        check_adasum_ranks(members)
    if kind == ALLTOALL and len(metas) > 1:
        raise TypeError(ONE_TENSOR)
    if kind == ALLTOALL and metas[0][1][0] % members:
        raise InvalidRequestError(
            f"alltoall without splits needs the same number of rows for each rank: expected a multiple of {members}, "
            f"got {metas[0][1][0]}"
        )


operations = JaxOperations()

allreduce = operations.allreduce
allreduce_async = operations.allreduce_async
grouped_allreduce = operations.grouped_allreduce
grouped_allreduce_async = operations.grouped_allreduce_async
allgather = operations.allgather
allgather_async = operations.allgather_async
grouped_allgather = operations.grouped_allgather
grouped_allgather_async = operations.grouped_allgather_async
alltoall = operations.alltoall
alltoall_async = operations.alltoall_async
reducescatter = operations.reducescatter
reducescatter_async = operations.reducescatter_async
grouped_reducescatter = operations.grouped_reducescatter
grouped_reducescatter_async = operations.grouped_reducescatter_async
broadcast = operations.broadcast
broadcast_async = operations.broadcast_async
barrier = operations.barrier
