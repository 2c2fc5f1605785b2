# SPDX-License-Identifier: Apache-2.0
"""Errors of the core as MXNet raises them.

MXNet keeps the failure of an operation with the arrays that it should have written, and raises it when one of them is
read (wait_to_read, asnumpy, waitall). What is raised is an MXNetError and, at the same time, the core's own error
(core/exceptions.py), so that a script may catch either.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from mxnet.base import MXNetError, register_error

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.exceptions import HorovodInternalError, OutOfMemoryError
from horovod.mxnet.shim import generation

__all__ = ["MXNetError", "mixed", "raising_mxnets"]


_kinds: dict[type[Exception], type[Exception]] = {}


def _mixed_kind(kind: type[Exception]) -> type[Exception]:
    members = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": _reduced}
    return _kinds.setdefault(kind, type(kind.__name__, (kind, MXNetError), members))


def _as(kind: type[Exception], error: Exception) -> Exception:
    made = kind.__new__(kind, *error.args)
    made.__dict__.update(error.__dict__)
    return made


def mixed(error: Exception) -> Exception:
    """An error of the core that is an MXNetError, too."""
    generation.has_told = True
    return error if isinstance(error, MXNetError) else _as(_mixed_kind(type(error)), error)


def _reduced(error: Exception) -> tuple[Any, tuple[Exception]]:
    return mixed, (_as(type(error).__bases__[0], error),)


@contextlib.contextmanager
def raising_mxnets() -> Iterator[None]:
    """Errors of operations that block are the same as those of operations that MXNet runs."""
    try:
        yield
    except (HorovodInternalError, OutOfMemoryError) as error:
        raise mixed(error) from None


def _read(text: str) -> Exception:
    """The error whose text native/shims/mxnet gave to MXNet."""
    found = re.fullmatch(
        r"(?:Traceback.*\n)?horovod: (.*)\n\(code (\d+), rank (-?\d+), generation (\d+)\)\s*", text, re.DOTALL
    )
    if found is None:
        return RuntimeError(text)
    status = native.Status()
    status.text, status.failed_rank = found[1].encode()[: native.TEXT_BYTES - 1], int(found[3])
    code = int(found[2])
    if contexts.is_initialized() and int(found[4]) == generation.number:
        return mixed(contexts.current().failure_of(code, status))  # which knows what came first
    return mixed(native.error_of(code, found[1], status.failed_rank))


register_error("horovod", _read)
