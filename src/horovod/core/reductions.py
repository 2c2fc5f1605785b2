# SPDX-License-Identifier: Apache-2.0
"""How to reduce, as users say it (step 3): an op, or the old `average`, with factors, in a process set."""

from __future__ import annotations

import operator

from horovod.core import native
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import BITWISE, Average, Sum
from horovod.core.process_sets import ProcessSet, number_of
from horovod.core.requests import as_factors
from horovod.core.tracebacks import warn
from horovod.core.wording import shown

__all__ = ["Reduction", "as_key", "resolve_op", "resolved"]

# (op, average, prescale, postscale, process set), as the user gave them; a plain tuple, as it is made on every call.
Reduction = tuple[int | None, bool | None, float, float, ProcessSet | None]


def resolve_op(op: int | None, average: bool | None) -> int:
    """The reduction that `op` or the deprecated `average` asks for; Average if neither is given. Raises ValueError."""
    if average is not None:
        if op is not None:
            name = native.OP_NAMES[op] if op in range(len(native.OP_NAMES)) else repr(op)
            raise InvalidRequestError(f"both op={name} and average={average!r} were given\nhint: give op alone")
        warn("average= is deprecated; use op=Average or op=Sum", DeprecationWarning)
        return Average if average else Sum
    if op is None or type(op) is int:
        return Average if op is None else op
    try:
        if type(op) is not bool:
            return operator.index(op)
    except TypeError:
        pass
    # It may equal the number of an operation, as 1.0 does, and keys would take it for one.
    raise InvalidRequestError(f"op={shown(op)}: expected one of {', '.join(native.OP_NAMES)}")


def resolved(how: Reduction) -> tuple[int, float, float, int]:
    """(op, prescale, postscale, number of the process set). Raises ValueError or TypeError."""
    op, average, prescale, postscale, process_set = how
    op, factors = resolve_op(op, average), as_factors(prescale, postscale)
    if factors != (1.0, 1.0) and op in BITWISE:
        raise InvalidRequestError(
            f"op={native.OP_NAMES[op]} cannot be scaled: expected factors of 1, got prescale_factor={factors[0]} and "
            f"postscale_factor={factors[1]}\nhint: give no factor"
        )
    return op, *factors, number_of(process_set)


def as_key(how: Reduction) -> Reduction:
    """`how` as a part of a key. Raises ValueError if it has no meaning."""
    op, average, prescale, postscale, process_set = how
    # resolve_op: a bool as op would count as the number of Sum or Average, and `average` shall warn at every call.
    # as_factors: a scale may come as a tensor, whose value can change; the key must not.
    return resolve_op(op, average), None, *as_factors(prescale, postscale), process_set
