# SPDX-License-Identifier: Apache-2.0
"""Changes to JAX: our operations keep their order, and one that fails does not fail later functions (step 3).

JAX has no public interface for them. They are made once, when the operations are imported.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any

from jax._src import dispatch, effects
from jax._src import pjit as functions
from jax._src.interpreters import partial_eval

from horovod.jax.compiled import collective_p
from horovod.jax.shim import has_tokens, operation_effects, ordered_effect

__all__ = ["apply"]


@functools.cache
def apply() -> None:
    _allow_effects()
    _let_functions_fail_alone()
    if has_tokens:
        _order_inner_calls()


def _allow_effects() -> None:
    """Lets our effects be in loops, conditions, custom derivatives and rematerialized functions."""
    effects.ordered_effects.add_type(type(ordered_effect))
    for allowed in (
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
    ):
        for effect in operation_effects:
            allowed.add_type(type(effect))


def _let_functions_fail_alone() -> None:
    """Keeps an operation's error from the functions that are called later.

    JAX gives the token that a function returns to the next one. If the first has failed, its token has the error, and
    so would every function that holds an ordered operation from then on. So they all get a first one. One device runs
    functions in the order of their calls without tokens; for another device this waits, as JAX does.
    """
    # JAX may rename them: then it goes on as it does by itself.
    kind = getattr(dispatch, "RuntimeTokenSet", None)
    take = getattr(kind, "get_token_input", None)
    if kind is None or take is None or not hasattr(dispatch.runtime_tokens, "current_tokens"):
        return

    @functools.wraps(take)
    def take_first(tokens: Any, effect: Any, devices: Any) -> Any:
        last = tokens.current_tokens.pop(effect, None) if effect == ordered_effect else None
        if last is not None and last._buf.devices() != set(devices):
            with contextlib.suppress(RuntimeError):  # the user of the function's results gets it
                last.block_until_ready()
        return take(tokens, effect, devices)

    kind.get_token_input = take_first


# Functions that were traced by themselves, and are called by others

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
    """Orders the calls of a function that JAX has traced already.

    Gradients of a function that was traced by itself have no effect (compiled.py). If another traced function calls it
    later, maybe twice, they get one then: that alone gives these calls an order.
    """
    function_p = getattr(functions, "jit_p", None) or functions.pjit_p  # before JAX 0.7
    stage = partial_eval.custom_staging_rules[function_p]

    def stage_ordered(trace: Any, *arguments: Any, jaxpr: Any, **params: Any) -> Any:
        return stage(trace, *arguments, jaxpr=_ordered(jaxpr), **params)

    partial_eval.custom_staging_rules[function_p] = stage_ordered
