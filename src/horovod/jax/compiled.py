# SPDX-License-Identifier: Apache-2.0
"""The operations as a primitive of JAX: what a compiled function holds of them (step 3, for JAX).

All tensors of a call are one call of the native handler (native/shims/jax). What calls one by one may run in any order,
and so wait for each other on different ranks; therefore a program's calls have an order. An `ordered` call has an
effect: JAX keeps it even if its result is not used, and gives its order to all programs and their inner functions. But
JAX starts programs with effects slowly, by 17 microseconds an argument. A call that is not ordered has no effect: that
is for gradients, whose results are always used, in a function that no other calls. In addition each call of a
function's body takes a value of the one before.

The gradients, and what vmap makes of a call: autograd.py.
"""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from horovod.core import context as contexts
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, SYNC, Adasum, Sum
from horovod.core.process_sets import ProcessSet, set_of_lasting_number
from horovod.core.requests import wire_name
from horovod.core.telemetry.arrivals import note_framework_waits
from horovod.gradients.watched import follow
from horovod.jax.shim import TARGET, custom_call, has_tokens, operation_effects, ordered_effect, uses_gpus
from horovod.jax.tensors import collectives

__all__ = ["Watch", "bind", "collective_p", "set_of"]

Watch: TypeAlias = tuple[int, tuple[int, ...]]  # the number of a list, and the tensors' places in it

_PARTS = 8  # of a pytree's keys, each with a checksum
_BY_ROWS = (ALLGATHER, ALLTOALL, REDUCESCATTER)

collective_p = Primitive("horovod_collective")
collective_p.multiple_results = True


def bind(
    tensors: Sequence[Any],
    kind: int,
    label: str,
    name: str | None,
    process_set: int,
    *,
    op: int = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root_rank: int = -1,
    ordered: bool = True,
    keys: Sequence[str] = (),
    watch: Watch | None = None,
) -> list[Any]:
    """The results of an operation on `tensors`. `label`: its name among users; `process_set`: a lasting number.

    name: one that ends with a slash goes on with the function's name and a number. keys: those of the
    tensors, which all ranks must have in common, and by which errors name them. watch: the list that the tensors are
    of (gradients/watched.py).
    """
    members, member = contexts.current().place(process_set) if kind in _BY_ROWS else (1, 0)
    results: list[Any] = collective_p.bind(
        *tensors,
        kind=kind,
        label=label,
        name=name,
        process_set=process_set,
        op=op,
        prescale=prescale,
        postscale=postscale,
        root_rank=root_rank,
        members=members,
        member=member,
        ordered=ordered,
        keys=tuple(keys),
        watch=watch,
    )
    return results


def _rows(kind: int, rows: int, members: int, member: int) -> int:
    """How many rows the result of a tensor of `rows` rows has."""
    if kind == ALLGATHER:
        return rows * members
    if kind == REDUCESCATTER:
        return rows // members + (member < rows % members)
    return rows


@collective_p.def_effectful_abstract_eval
def _abstract(*avals: Any, kind: int, members: int, member: int, ordered: bool, **_: Any) -> tuple[list[Any], Any]:
    results = list(avals)
    if kind in _BY_ROWS:
        shapes = [(_rows(kind, aval.shape[0], members, member), *aval.shape[1:]) for aval in avals]
        results = [jax.core.ShapedArray(shape, aval.dtype) for shape, aval in zip(shapes, avals, strict=True)]
    return results, operation_effects if ordered else frozenset()


def set_of(number: int) -> ProcessSet:
    """The process set of a lasting number. Raises ValueError if there is none any more."""
    process_set = set_of_lasting_number(number)
    if process_set is None:
        raise InvalidRequestError("the process set of this function is not registered any more")
    return process_set


@collective_p.def_impl
def _run(
    *tensors: Any,
    kind: int,
    label: str,
    name: str | None,
    process_set: int,
    op: int,
    prescale: float,
    postscale: float,
    root_rank: int,
    members: int,
    **_: Any,
) -> Sequence[Any]:
    """Outside of compiled functions, where it is differentiated or mapped."""
    members_of, how = set_of(process_set), (op, None, prescale, postscale, set_of(process_set))
    grouped = label.startswith("grouped")
    if kind == ALLREDUCE:
        if grouped or len(tensors) > 1:
            return collectives.grouped_allreduce(tensors, name, how, False, SYNC).wait()  # type: ignore[no-any-return]
        return [collectives.run_allreduce(tensors[0], name, how, False)]
    if kind == REDUCESCATTER:
        return collectives._scatter(tensors, label, name, how, SYNC).wait()  # type: ignore[no-any-return]
    if kind == BROADCAST:
        return collectives.broadcast(list(tensors), root_rank, name, members_of, False, SYNC).wait()  # type: ignore[no-any-return]
    if kind == ALLGATHER:
        pairs = collectives._gather(tensors, label if grouped else None, name, members_of, SYNC, True).wait()
        return [
            _checked(rows, counts, tensor.shape[0], label)
            for (rows, counts), tensor in zip(pairs, tensors, strict=True)
        ]
    if kind == ALLTOALL:
        rows, received = collectives.alltoall(tensors[0], None, name, members_of, SYNC).wait()
        return [_checked(rows, received, tensors[0].shape[0] // members, label)]
    collectives.barrier(members_of)
    return []


def _checked(result: Any, rows: Sequence[Any], expected: int, label: str) -> Any:
    """The result, if every rank gave as many rows as this one: only then is its shape what JAX was told."""
    for member, count in enumerate(rows):
        if int(count) != expected:
            raise InvalidRequestError(
                f"{label}: to be differentiated or mapped, it needs the same number of rows from every rank: expected "
                f"{expected} as on this rank, got {int(count)} from member {member}\nhint: fill up the rows"
            )
    return result


def _is_call(operation: Any) -> bool:
    """True if the operation calls the handler."""
    if operation.operation.name != "stablehlo.custom_call":
        return False
    return bool(mlir.ir.StringAttr(operation.attributes["call_target_name"]).value == TARGET)


def _calls_before(block: Any) -> list[Any]:
    """The calls of the handler that a function's body holds so far."""
    return [operation for operation in block.operations if _is_call(operation)]


def _count_calls(operation: Any) -> int:
    """The calls of the handler inside of an operation of MLIR, such as a module, so far."""
    inner = [one for region in operation.regions for block in region.blocks for one in block.operations]
    return sum(_count_calls(one.operation) for one in inner) + _is_call(operation)


def _check_devices(label: str, context: Any) -> None:
    """Raises NotImplementedError if the function runs on several devices of this process: each would call once."""
    attributes = context.module_context.module.operation.attributes
    count = math.prod(
        mlir.ir.IntegerAttr(attributes[name]).value for name in ("mhlo.num_replicas", "mhlo.num_partitions")
    )
    if count > 1 and jax.process_count() == 1:
        raise NotImplementedError(
            f"{label} in a function that runs on {count} devices of this process is not supported: expected one\n"
            "hint: start a rank for each device, or call it outside of jax.jit, where it takes such arrays"
        )


def _unique(label: str, name: str | None, context: Any, place: int) -> str:
    """The name under which the ranks meet.

    A call without a name gets the function's, and its place in the body that holds it. Gradients get their number in
    all of the module, as nothing else orders those of a function and of its inner functions.
    """
    if name is None or name.endswith("/"):
        module = context.module_context.module.operation
        function = mlir.ir.StringAttr(module.attributes["sym_name"]).value
        name = f"{function}.{place}" if name is None else f"{name}{function}.{_count_calls(module)}"
    encoded = wire_name(label, name)
    assert encoded is not None
    return encoded.decode()


def _lower(
    context: Any,
    *tensors: Any,
    kind: int,
    label: str,
    name: str | None,
    process_set: int,
    op: int,
    prescale: float,
    postscale: float,
    root_rank: int,
    members: int,
    member: int,
    ordered: bool,
    keys: tuple[str, ...],
    watch: Watch | None,
) -> list[Any]:
    if not has_tokens and str(context.name_stack).count("jit(") > 2:
        raise NotImplementedError(
            f"{label} in a compiled function that another compiled function calls needs JAX 0.5 or newer\n"
            "hint: jax.jit for the outer function alone"
        )
    _check_devices(label, context)
    note_framework_waits()
    ir = mlir.ir
    before = _calls_before(ir.InsertionPoint.current.block)
    token = _plain(context.tokens_in.get(ordered_effect)) if ordered and has_tokens else []
    # The result behind the token, if any, is the call's place in the order.
    order = [before[-1].results[-1]] if before else []
    leading = [*token, *order]
    types = [
        ir.RankedTensorType.get(list(aval.shape), ir.RankedTensorType(tensor.type).element_type)
        for tensor, aval in zip(tensors, context.avals_out, strict=True)
    ]
    aliases = {} if kind in _BY_ROWS else {len(leading) + i: len(token) + i for i in range(len(tensors))}
    numbers = {
        "kind": kind,
        "op": op,
        "process_set": process_set,
        "root_rank": root_rank,
        "members": members,
        "member": member,
        "order_operands": len(order),
    }
    ranks = [len(aval.shape) for aval in context.avals_in]
    unique = _unique(label, name, context, len(before))
    if watch is not None:
        follow(watch[0], unique, watch[1])
    results = custom_call(
        context,
        [*leading, *tensors],
        [0] * len(token) + [1] * len(order) + ranks,
        [*(value.type for value in token), *types, ir.RankedTensorType.get([1], ir.IntegerType.get_unsigned(8))],
        [0] * len(token) + ranks + [1],
        operand_output_aliases=aliases,
        attributes={
            **{key: np.int64(number) for key, number in numbers.items()},
            "name": unique,
            **(_of_tree(keys) if keys and op != Adasum else {}),  # Adasum is of tensors that have elements
            "prescale": np.float64(prescale),
            "postscale": np.float64(postscale),
        },
    )
    if ordered:
        after = results[0] if token else context.tokens_in.get(ordered_effect)
        context.set_tokens_out(mlir.TokenSet({ordered_effect: after}))
    return results[len(token) : -1]


def _of_tree(keys: Sequence[str]) -> dict[str, str]:
    """The attributes that native/shims/jax/tree.h reads."""
    size = -(-len(keys) // _PARTS)
    parts = [keys[start : start + size] for start in range(0, size * _PARTS, size)]  # the last may be empty
    checksums = [zlib.crc32("\n".join(part).encode()) for part in parts]
    return {"keys": "\n".join(keys), "checksums": " ".join(map(str, [size, *checksums]))}


def _plain(token: Any) -> list[Any]:
    return list(token) if isinstance(token, (list, tuple)) else [token]


def _lower_for_gpu(context: Any, *tensors: Any, **what: Any) -> list[Any]:
    uses_gpus()
    return _lower(context, *tensors, **what)


def _refuse(context: Any, *_: Any, label: str, **__: Any) -> Any:
    raise NotImplementedError(
        f"{label} in a function that JAX compiles for {', '.join(context.module_context.platforms)} is not supported: "
        "expected a function for the CPU or CUDA\nhint: call it outside of jax.jit, where it takes arrays of any device"
    )


# Each call is lowered by itself, in its function's body, if this release of JAX would do anything else.
_uncached = {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}
mlir.register_lowering(collective_p, _refuse, **_uncached)
mlir.register_lowering(collective_p, _lower, platform="cpu", **_uncached)
mlir.register_lowering(collective_p, _lower_for_gpu, platform="cuda", **_uncached)
