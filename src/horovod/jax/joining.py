# SPDX-License-Identifier: Apache-2.0
"""Joins and the end of process sets, for JAX: those of the core, once what this rank has called is done.

JAX returns before a compiled function has run. The core would hear of a join before it hears of that function's
operations, and refuse them. What is traced would run once and never again, so it is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from horovod.core import joining, process_sets
from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet
from horovod.jax.shim import finish, is_eager

__all__ = ["join", "remove_process_set", "uneven_data"]


def _check_eager(label: str) -> None:
    if not is_eager():
        raise InvalidRequestError(
            f"{label} cannot be part of a function that JAX compiles, differentiates or maps: it would run when the "
            "function is traced, and not when it is called\nhint: call it outside of jax.jit"
        )


def join(device: Any = -1) -> int:
    """As core's join, once the compiled functions that were called are done.

    Raises ValueError in a function that JAX traces.
    """
    _check_eager("join")
    finish()
    return joining.join(device)


@contextlib.contextmanager
def uneven_data() -> Iterator[joining.UnevenData]:
    """As core's uneven_data, with this module's join. Raises ValueError in a function that JAX traces."""
    _check_eager("uneven_data")
    with joining.uneven_data() as data:
        yield data
        finish()


def remove_process_set(process_set: ProcessSet) -> bool:
    """As core's remove_process_set, once the compiled functions that were called are done.

    Raises ValueError in a function that JAX traces.
    """
    _check_eager("remove_process_set")
    finish()
    return process_sets.remove_process_set(process_set)
