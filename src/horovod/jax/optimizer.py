# SPDX-License-Identifier: Apache-2.0
"""The ranks' average of gradients, for optax and by itself (steps 1 and 2 of a gradient's way)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import tree_util

from horovod.core.compression import Compressor
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.wording import shown
from horovod.gradients.options import ReductionOptions
from horovod.gradients.replica_check import ReplicaCheck
from horovod.gradients.step_check import Options
from horovod.jax.compression import Compression
from horovod.jax.gradient_list import JaxGradients
from horovod.jax.replicas import key_of, of_tree, options_of
from horovod.jax.shim import is_eager
from horovod.jax.tensors import with_arrays

__all__ = ["AccumulationState", "DistributedGradientTransformation", "allreduce_gradients", "grad", "value_and_grad"]


def _reduced(gradients: Any, options: ReductionOptions, name: str, watched: Options | None = None) -> Any:
    """The reductions of a pytree's leaves. The gradients of integers, which hold nothing, stay as they are.

    watched: options that must be equal on all ranks.
    """
    pairs, structure = tree_util.tree_flatten_with_path(gradients)
    leaves = with_arrays([leaf for _, leaf in pairs])
    places = [place for place, leaf in enumerate(leaves) if not _is_empty(leaf)]
    keys = [key_of(pairs[place][0]) for place in places]
    reduce = JaxGradients(options, name, keys=keys, is_applied=name == "optimizer")
    reduce.watched_options = watched
    reduced = reduce([leaves[place] for place in places])
    for place, result in zip(places, reduced, strict=True):
        leaves[place] = result
    return structure.unflatten(leaves)


def _options(arguments: dict[str, Any]) -> ReductionOptions:
    groups = arguments["groups"]
    if groups is not None and (not isinstance(groups, int) or isinstance(groups, bool) or groups < 0):
        raise InvalidRequestError(f"groups={shown(groups)}: expected a number of groups")
    return ReductionOptions.among(arguments)


def allreduce_gradients(
    gradients: Any,
    name: str | None = None,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    gradient_predivide_factor: float = 1.0,
    groups: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The ranks' average of a pytree of gradients, as one operation, inside or outside of compiled functions.

    The ranks must give equal keys, dtypes and shapes. groups: so many operations instead of one, which start as
    soon as their gradients are there. Raises ValueError for options that do not fit together; else as allreduce.
    """
    options = _options(locals())
    return _reduced(gradients, options, "allreduce_gradients")


def DistributedGradientTransformation(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    gradient_predivide_factor: float = 1.0,
    groups: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optax.GradientTransformation that takes the ranks' average of the gradients in place of this rank's own.

    Its state is that of `optimizer`. backward_passes_per_step: gradients of so many calls are summed (averaged with
    average_aggregated_gradients) before one reduction; the updates of the other calls are zeros, and the state is an
    AccumulationState. op=Adasum: each rank makes its own updates, and Adasum combines these. groups: as of
    allreduce_gradients.
    """
    import optax

    options = _options(locals())
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
        raise TypeError(
            f"DistributedGradientTransformation: expected an optax.GradientTransformation, got {shown(optimizer)}"
        )
    inner = optax.with_extra_args_support(optimizer)
    check = ReplicaCheck(name or "the optimizer", process_set)

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if not options.is_adasum:
            reduced = _reduced(gradients, options, "optimizer", lambda: options_of(state))
            if params is not None and is_eager() and check.is_due():
                parts = [*of_tree(params, whole=check.is_whole)]
                check.compare([*parts, *(of_tree(state, "state") if check.is_whole else ())])
            return inner.update(reduced, state, params, **extra)  # type: ignore[no-any-return]
        updates, state = inner.update(gradients, state, params, **extra)
        return _reduced(updates, options, "optimizer"), state

    distributed = optax.GradientTransformationExtraArgs(inner.init, update)
    if backward_passes_per_step == 1:
        return distributed
    return _accumulating(distributed, backward_passes_per_step, average_aggregated_gradients)


class AccumulationState(NamedTuple):
    """The state with backward_passes_per_step > 1: passes since the last step, their sums, the optimizer's state."""

    passes: Any
    sums: Any
    inner: Any


def _accumulating(transformation: Any, passes: int, is_average: bool) -> Any:
    """optax.MultiSteps would reduce in every pass."""
    import optax

    def init(params: Any) -> AccumulationState:
        sums = tree_util.tree_map(jnp.zeros_like, params)
        return AccumulationState(jnp.zeros((), jnp.int32), sums, transformation.init(params))

    def update(gradients: Any, state: AccumulationState, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        sums = tree_util.tree_map(lambda whole, new: whole if _is_empty(new) else whole + new, state.sums, gradients)

        def given(whole: Any, new: Any) -> Any:
            return new if _is_empty(new) else whole / passes if is_average else whole

        def step() -> tuple[Any, AccumulationState]:
            whole = tree_util.tree_map(given, sums, gradients)
            updates, inner = transformation.update(whole, state.inner, params, **extra)
            zeros = tree_util.tree_map(jnp.zeros_like, sums)
            return updates, AccumulationState(jnp.zeros((), jnp.int32), zeros, inner)

        def wait() -> tuple[Any, AccumulationState]:
            # The optimizer decides on the dtypes of its updates, and may change those of its first state.
            updates, after = jax.eval_shape(step)
            waiting = tree_util.tree_map(_as, AccumulationState(state.passes + 1, sums, state.inner), after)
            return tree_util.tree_map(jnp.zeros_like, updates), waiting

        return jax.lax.cond(state.passes + 1 == passes, step, wait)  # type: ignore[no-any-return]

    return optax.GradientTransformationExtraArgs(init, update)


def _is_empty(gradient: Any) -> bool:
    """True if it is the gradient of integers, which holds nothing."""
    return bool(getattr(gradient, "dtype", None) == jax.dtypes.float0)


def _as(leaf: Any, form: Any) -> Any:
    return leaf if getattr(leaf, "dtype", None) == form.dtype else jnp.asarray(leaf, form.dtype)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    name: str | None = None,
    op: int = Average,
    compression: type[Compressor] = Compression.none,
    gradient_predivide_factor: float = 1.0,
    groups: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., Any]:
    """As jax.value_and_grad, with the ranks' average of the gradients. The value is this rank's own."""
    options = _options(locals())
    local = jax.value_and_grad(fun, argnums, has_aux)

    def value_and_average(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        value, gradients = local(*arguments, **keywords)
        return value, _reduced(gradients, options, "value_and_grad")

    return value_and_average


def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, **options: Any) -> Any:
    """As jax.grad, with the ranks' average of the gradients. `options`: as of value_and_grad."""
    both = value_and_grad(fun, argnums, has_aux, **options)

    def average(*arguments: Any, **keywords: Any) -> Any:
        value, gradients = both(*arguments, **keywords)
        return (gradients, value[1]) if has_aux else gradients

    return average
