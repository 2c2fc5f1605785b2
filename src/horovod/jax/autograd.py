# SPDX-License-Identifier: Apache-2.0
"""The derivatives of the operations, and what jax.vmap makes of them.

The gradients are those of the other frameworks (torch/autograd.py). Each is itself an operation: all ranks run it,
under the name of the forward with `.backward` behind it.

    allreduce       the same allreduce of the gradient
    allgather       the average of the gradients, of which each rank takes its rows
    broadcast       the average of the gradients on the root, zeros elsewhere
    alltoall        the gradient's rows go back to the ranks that sent the inputs (even parts only)
    reducescatter   the allgather of the gradients, times the factors; for Sum also times the number of ranks

Forward mode takes the operation of the tangents. Reductions other than Average and Sum have no derivative.

vmap: the examples of all ranks meet each other, so the mapped operation is one operation of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad, batching

from horovod.core import context as contexts
from horovod.core.native import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, OP_NAMES, REDUCESCATTER, Adasum, Average, Sum
from horovod.jax.compiled import bind, collective_p, set_of
from horovod.jax.traces import refuse

__all__: list[str] = []


def _check_derivative(kind: int, label: str, name: str | None, op: int, process_set: int, **_: Any) -> None:
    if kind in (ALLREDUCE, REDUCESCATTER) and op not in (Average, Sum):
        why = f"op={OP_NAMES[op]} has no derivative\nhint: call it on jax.lax.stop_gradient(tensor)"
        refuse(label, name, NotImplementedError(why), set_of(process_set))


def _derivative(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    _check_derivative(**params)
    results = collective_p.bind(*primals, **params)
    # Integers have no tangents; every rank gives those of all other tensors, zeros among them.
    floating = [index for index, primal in enumerate(primals) if jnp.issubdtype(primal.dtype, jnp.inexact)]
    found = [
        ad.Zero(tangent.aval.update(shape=result.shape)) if type(tangent) is ad.Zero else tangent
        for tangent, result in zip(tangents, results, strict=True)
    ]
    name = params["name"]
    given = [ad.instantiate_zeros(tangents[index]) for index in floating]
    params |= {"name": None if name is None else f"{name}.forward", "keys": (), "watch": None}
    for index, tangent in zip(floating, collective_p.bind(*given, **params), strict=True):
        found[index] = tangent
    return results, found


ad.primitive_jvps[collective_p] = _derivative


def _transposed(cotangents: Sequence[Any], *tensors: Any, kind: int, name: str | None, op: int, **params: Any) -> Any:
    """The gradient: every operation is linear in all tensors. The cotangents of unused results are zeros."""
    given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    base = name.removesuffix(".forward") if name is not None else None
    call = {
        "label": params["label"],
        "name": None if base is None else f"{base}.backward",
        "process_set": params["process_set"],
        "ordered": params["ordered"],
    }
    how = {"op": op, "prescale": params["prescale"], "postscale": params["postscale"]}
    rows = [tensor.aval.shape[:1] for tensor in tensors]
    members, member = params["members"], params["member"]
    if kind == ALLREDUCE:
        return bind(given, ALLREDUCE, **call, **how)
    if kind == ALLGATHER:
        averaged = bind(given, ALLREDUCE, **call, op=Average)
        return [whole[member * count : (member + 1) * count] for whole, (count,) in zip(averaged, rows, strict=True)]
    if kind == BROADCAST:
        averaged = bind(given, ALLREDUCE, **call, op=Average)
        is_root = contexts.rank() == params["root_rank"]
        return [jnp.where(is_root, whole, jnp.zeros_like(whole)) for whole in averaged]
    if kind == ALLTOALL:
        return bind(given, ALLTOALL, **call)
    factor = params["prescale"] * params["postscale"] * (members if op == Sum else 1)
    counts = [count for (count,) in rows]
    return _gathered([cotangent * factor for cotangent in given], counts, members, member, call)


ad.primitive_transposes[collective_p] = _transposed


def _gathered(tensors: list[Any], rows: list[int], members: int, member: int, call: dict[str, Any]) -> list[Any]:
    """All ranks' rows of a reducescatter's result: `rows` together."""
    if all(count % members == 0 for count in rows):
        return bind(tensors, ALLGATHER, **call)
    # Ranks have different numbers of rows, and a compiled allgather has none of that: each puts its own among zeros.
    placed = []
    for tensor, count in zip(tensors, rows, strict=True):
        before = member * (count // members) + min(member, count % members)
        after = count - before - tensor.shape[0]
        placed.append(jnp.pad(tensor, [(before, after)] + [(0, 0)] * (tensor.ndim - 1)))
    return bind(placed, ALLREDUCE, **call, op=Sum)


def _mapped(tensors: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
    if params["op"] == Adasum:
        why = "Adasum cannot be mapped by jax.vmap: it combines whole tensors\nhint: call it outside of what is mapped"
        refuse(params["label"], params["name"], NotImplementedError(why), set_of(params["process_set"]))
    if params["kind"] in (ALLREDUCE, BROADCAST):
        return collective_p.bind(*tensors, **params), list(dims)
    # By rows, which come first; the examples are behind them.
    moved = [tensor if dim is None else jnp.moveaxis(tensor, dim, 1) for tensor, dim in zip(tensors, dims, strict=True)]
    return collective_p.bind(*moved, **params), [None if dim is None else 1 for dim in dims]


batching.primitive_batchers[collective_p] = _mapped
