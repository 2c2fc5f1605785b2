# SPDX-License-Identifier: Apache-2.0
"""The native handler (native/shims/jax) as JAX sees it, and the differences between JAX's releases.

The handler is a part of the native core. It is registered once, and told which generation runs.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import effects  # the public interface has no ordered effects

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.context import Context

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.9
    from jax.core import get_opaque_trace_state
try:
    from jax import ffi

    has_tokens = True
except ImportError:  # before JAX 0.5
    from jax.extend import ffi

    has_tokens = False  # XLA does not take tokens to a handler: the order holds inside of each function's body only

__all__ = [
    "TARGET",
    "calls",
    "custom_call",
    "finish",
    "has_tokens",
    "is_eager",
    "is_outermost",
    "operation_effects",
    "ordered_effect",
    "uses_gpus",
]

TARGET = "horovod_collective"


class _OfOperation(effects.Effect):
    def __repr__(self) -> str:  # which errors of JAX show
        return "Horovod"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))


class _Ordered(_OfOperation):
    """The effect of an operation in a compiled function: JAX neither drops nor reorders what has it."""


class _Noted(_OfOperation):
    """Stands beside it: what `jax.jit(f).lower(...).compile()` gives forgets effects of which all are ordered."""


ordered_effect, _noted = _Ordered(), _Noted()
operation_effects = frozenset({ordered_effect, _noted})

_trace_state: Any = get_opaque_trace_state
_eager_state = _trace_state(convention="flax")


def is_eager() -> bool:
    """True if a call made now runs now: nothing is traced, differentiated or mapped."""
    return bool(_trace_state(convention="flax") == _eager_state)


def is_outermost(tensors: Sequence[Any]) -> bool:
    """True if a function's own body is being traced, and no other traced function calls it. False if unknown.

    Then each of its operations is in one program once.
    """
    trace = next((tensor._trace for tensor in tensors if isinstance(tensor, jax.core.Tracer)), None)
    kinds = []
    while trace is not None:
        kinds.append(type(trace).__name__)
        trace = getattr(trace, "parent_trace", None)  # before JAX 0.6 a function's trace does not tell
    return kinds.count("DynamicJaxprTrace") == 1 and kinds[-1] == "EvalTrace"


def custom_call(
    context: Any, operands: list[Any], ranks: list[int], results: list[Any], result_ranks: list[int], **options: Any
) -> list[Any]:
    """Adds a call of the native handler to the module that is lowered; returns the values of its results.

    `results`: their types. Ranks: numbers of dimensions. `options`: aliases, and `attributes`, a dictionary.
    """
    global _holds_operations
    _holds_operations = True
    attributes = options.pop("attributes")
    lower = ffi.ffi_lowering(
        TARGET,
        operand_layouts=[_rows_first(rank) for rank in ranks],
        result_layouts=[_rows_first(rank) for rank in result_ranks],
        result_types=results,
        result_shapes=None,  # all are static
        has_side_effect=True,
        **options,
    )
    # JAX pairs the layouts with avals, which it does not look at, as there is a layout for each.
    unseen = context.replace(avals_in=[None] * len(operands), avals_out=[None] * len(results))
    return list(lower(unseen, *operands, **attributes))


def _rows_first(dimensions: int) -> tuple[int, ...]:
    """The layout, from the dimension whose elements are neighbours on."""
    return tuple(reversed(range(dimensions)))


def calls() -> int:
    """How often compiled functions of this process have called the handler."""
    return int(native.library().hvd_jax_calls())


def uses_gpus() -> None:
    """Notes that compiled functions launch operations on a GPU, for which a commit has to wait."""
    global _on_gpus
    _on_gpus = True
    if contexts.is_initialized():
        contexts.current().uses_gpus = True


_world: tuple[int, int] | None = None
_on_gpus = False
_holds_operations = False  # whether a function was compiled that does


def finish() -> None:
    """Blocks until the compiled functions that have been called are done: the other ranks wait for their operations."""
    if not (_holds_operations or calls()):  # what jax.export has loaded was compiled elsewhere, and has called
        return
    # A thread's functions run in the order of their calls, so this one runs last.
    waited_for = [jax.jit(jnp.zeros_like)(jnp.zeros(())), *jax.live_arrays()]
    if jax.default_backend() != "cpu":
        waited_for += jax.live_arrays("cpu")
    for array in waited_for:
        if not array.is_deleted():
            with contextlib.suppress(RuntimeError):  # the user of the array gets it
                array.block_until_ready()


_LATER_FAILURES = 100  # chosen: more than are called before a failure is known


def forget_failures() -> None:
    """Blocks until what has failed has no effect on functions that are called from now on.

    Before JAX 0.5 a function fails if its thread's previous call has failed and the failure is not known yet.
    """
    for _ in range(_LATER_FAILURES):
        with contextlib.suppress(RuntimeError):  # the user of those functions' results gets it
            _nothing().block_until_ready()
            return


_nothing = jax.jit(lambda: jnp.zeros(()))


def _attach(context: Context | None) -> None:
    global _world
    if context is None:
        finish()
    native.library().hvd_jax_attach(None if context is None else context.pointer)
    if context is None:
        return
    context.uses_gpus = context.uses_gpus or _on_gpus
    if _world not in (None, (context.rank, context.size)):
        jax.clear_caches()  # the shapes of results are constants of compiled functions
    _world = context.rank, context.size


def _register() -> None:
    library = native.library()
    library.hvd_jax_attach.argtypes = [ctypes.c_void_p]
    library.hvd_jax_attach.restype = None
    library.hvd_jax_calls.restype = ctypes.c_int64
    ffi.register_ffi_target(TARGET, ffi.pycapsule(library.hvd_jax_collective), platform="cpu")
    ffi.register_ffi_target(TARGET, ffi.pycapsule(library.hvd_jax_collective_on_gpu), platform="CUDA")
    contexts.watch(_attach)


_register()
