# SPDX-License-Identifier: Apache-2.0
"""Tells the peers of a call that is wrong on this rank (step 3).

It is found while JAX traces its function. So nothing of that function runs here, and the peers, who run it, would wait
in its first operation. JAX has no public interface for a look into functions that it traces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import jax
from jax._src import core as tracing
from jax._src.interpreters import partial_eval
from jax.interpreters import mlir

from horovod.core import context as contexts
from horovod.core.context import NotAMemberError
from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet
from horovod.core.wording import quoted
from horovod.jax.compiled import collective_p, set_of
from horovod.jax.tensors import collectives

__all__ = ["refuse", "tell"]


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
