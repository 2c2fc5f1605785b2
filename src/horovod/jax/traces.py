# SPDX-License-Identifier: Apache-2.0
"""A look into functions that JAX traces: calls that need an order, and calls that peers wait for (step 3).

JAX keeps what it has traced. Gradients of a function that was traced by itself have no effect (compiled.py). If another
traced function calls it later, maybe twice, they get one then: that alone gives these calls an order.

A call that is wrong on this rank is found while its function is traced. So nothing of that function runs here, and the
peers, who run it, would wait in its first operation.

JAX has no public interface for either.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

import jax
from jax._src import core as tracing
from jax._src import pjit as functions
from jax._src.interpreters import partial_eval
from jax.interpreters import mlir

from horovod.core import context as contexts
from horovod.core.context import NotAMemberError
from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet
from horovod.core.wording import quoted
from horovod.jax.compiled import collective_p, set_of
from horovod.jax.shim import has_tokens, operation_effects
from horovod.jax.tensors import collectives

__all__ = ["refuse", "tell"]

# Calls of traced functions that are called by others


_ordered_forms: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # by function; None: it needs none


def _ordered(function: Any) -> Any:
    """A traced function with an effect for each of its operations.

    Only its own: functions that it calls, and the bodies of its loops, have had one since they were traced.
    """
    if function not in _ordered_forms:
        equations = [_with_effect(equation) for equation in function.jaxpr.eqns]
        has_changed = any(new is not old for new, old in zip(equations, function.jaxpr.eqns, strict=True))
        effects = function.jaxpr.effects | operation_effects
        _ordered_forms[function] = (
            function.replace(jaxpr=function.jaxpr.replace(eqns=equations, effects=effects)) if has_changed else None
        )
    return _ordered_forms[function] or function


def _with_effect(equation: Any) -> Any:
    if equation.primitive is not collective_p or equation.params["ordered"]:
        return equation
    return equation.replace(params={**equation.params, "ordered": True}, effects=equation.effects | operation_effects)


def _order_inner_calls() -> None:
    function_p = getattr(functions, "jit_p", None) or functions.pjit_p  # before JAX 0.7
    stage = partial_eval.custom_staging_rules[function_p]

    def stage_ordered(trace: Any, *arguments: Any, jaxpr: Any, **params: Any) -> Any:
        return stage(trace, *arguments, jaxpr=_ordered(jaxpr), **params)

    partial_eval.custom_staging_rules[function_p] = stage_ordered


if has_tokens:
    _order_inner_calls()


# Calls that are wrong


def refuse(label: str, name: Any, error: Exception, process_set: ProcessSet | None) -> NoReturn:
    """Tells the peers, then raises the error of a call that cannot be traced, with rank and operation in front."""
    tell(label, name, error, process_set)
    kind = type(error) if type(error) in (TypeError, NotImplementedError) else InvalidRequestError
    raise kind(f"rank {contexts.rank()}: {_shown(label, name)}: {error}") from error.__cause__


def tell(label: str, name: Any, error: Exception, process_set: ProcessSet | None) -> None:
    """Tells the peers, who run the function that is traced, or this call, that this rank does not come.

    Before JAX 0.6, a function does not know who calls it: then only its own operations are known.
    """
    if isinstance(error, NotAMemberError):
        return
    frames = _frames()
    first = next((call for frame in frames for call in _calls(_equations(frame))), None)
    if first is not None:
        error = InvalidRequestError(f"the compiled function also holds {_shown(label, name)}: {error}")
        label, name, process_set = first["label"], first["name"], set_of(first["process_set"])
    if frames and (name is None or str(name).endswith("/")):
        name = f"{name or ''}{_module_of(frames[0])}.0"  # as compiled.py names the first
    collectives.tell(label, name, error, process_set)


def _shown(label: str, name: Any) -> str:
    return f"unnamed {label}" if name is None else f"{label} of {quoted(name)}"


def _frames() -> list[Any]:
    """The frames of the functions that are being traced: the operations so far. The outermost comes first."""
    trace: Any = tracing.trace_ctx.trace
    frames: list[Any] = []
    while trace is not None:
        if isinstance(trace, partial_eval.DynamicJaxprTrace):
            frames.insert(0, trace.frame)
        trace = getattr(trace, "parent_trace", None)
    return frames


def _equations(frame: Any) -> Any:
    return frame.get_eqns() if hasattr(frame, "get_eqns") else frame.eqns  # before JAX 0.8


def _calls(equations: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """The parameters of the operations, in their order."""
    for equation in equations:
        if equation.primitive is collective_p:
            yield equation.params
        for inner in tracing.jaxprs_in_params(equation.params):
            yield from _calls(inner.eqns)


def _module_of(frame: Any) -> str:
    """The name of the module that would be made of a function."""

    def stand_in() -> int:
        return 0

    stand_in.__name__ = (frame.debug_info.func_src_info or "").partition(" at ")[0]
    with jax.ensure_compile_time_eval():
        module = jax.jit(stand_in).lower().compiler_ir()
    name: str = mlir.ir.StringAttr(module.operation.attributes["sym_name"]).value
    return name
