# SPDX-License-Identifier: Apache-2.0
"""Uneven data: a rank that runs out of data says so, and gives zeros to the others' allreduces until all have joined.

What that means for each operation is decided in the native core (negotiation/coordinator/coordinator.h).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.operations import Operation, number_given

__all__ = ["UnevenData", "join", "uneven_data"]


def join(device: Any = -1) -> int:
    """Says that this rank is out of data, and blocks until all ranks have.

    Returns the rank that came last, the same on all ranks. Until then this rank gives zeros to every allreduce of the
    others, in all process sets (Average divides by the full size). Any other operation in which it would have to take
    part raises HorovodInternalError on the ranks that call it. Operations in flight still use this rank's data.
    `device` is accepted and not used.
    """
    context = contexts.current()
    for complete in contexts.before_leaving:
        complete()
    handle = ctypes.c_uint64()
    status = native.Status()
    code = context.library.hvd_join(context.pointer, ctypes.addressof(handle), ctypes.addressof(status))
    if code != native.OK:
        context.raise_failure(code, status)
    last = int(Operation(context, handle, None, None, number_given).wait())
    context.joins += 1
    return last


class UnevenData:
    """The result of uneven_data(): `last_rank` is the rank that had data longest, once the block has been left."""

    last_rank: int | None = None


@contextlib.contextmanager
def uneven_data() -> Iterator[UnevenData]:
    """A block in which ranks may do different numbers of steps: a rank that leaves the block joins.

    A rank that leaves it by an exception does not join.
    """
    data = UnevenData()
    yield data
    data.last_rank = join()
