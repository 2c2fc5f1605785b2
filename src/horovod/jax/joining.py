# SPDX-License-Identifier: Apache-2.0
"""Joins for JAX: core/joining.py, refused in functions that JAX traces, where they would run once and never again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from horovod.core import joining
from horovod.core.exceptions import InvalidRequestError
from horovod.jax.shim import is_eager

__all__ = ["join", "uneven_data"]


def _check_eager(label: str) -> None:
    if not is_eager():
        raise InvalidRequestError(
            f"{label} cannot be part of a function that JAX compiles, differentiates or maps: it would run when the "
            "function is traced, and not when it is called\nhint: call it outside of jax.jit"
        )


def join(device: Any = -1) -> int:
    """As core's join. Raises ValueError in a function that JAX traces."""
    _check_eager("join")
    return joining.join(device)


@contextlib.contextmanager
def uneven_data() -> Iterator[joining.UnevenData]:
    """As core's uneven_data. Raises ValueError in a function that JAX traces."""
    _check_eager("uneven_data")
    with joining.uneven_data() as data:
        yield data
