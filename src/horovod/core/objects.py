# SPDX-License-Identifier: Apache-2.0
"""Python objects between ranks, pickled by design.

They travel only between ranks that have proved the job's secret to each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.core import context, pickling
from horovod.core.arrays import collectives
from horovod.core.exceptions import MismatchError
from horovod.core.native import SYNC
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.wording import quoted

__all__ = ["allgather_object", "broadcast_object", "check_same_keys", "difference_of_keys"]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's `obj` on every rank; the other ranks' is ignored. `name` as in every operation."""
    context.current().settle()  # what an object says of tensors shall be true of them
    size_name, data_name = (None, None) if name is None else (f"{name}.sz", f"{name}.t")
    is_root = context.rank() == root_rank
    payload = _pickled(obj, "broadcast", size_name, process_set) if is_root else b""
    # The size first: only the root knows how much memory the object takes.
    length = np.array([len(payload)], np.int64)
    collectives.broadcast(length, root_rank, size_name, process_set, True, SYNC).wait()
    data = np.frombuffer(payload, np.uint8).copy() if is_root else np.empty(int(length[0]), np.uint8)
    collectives.broadcast(data, root_rank, data_name, process_set, True, SYNC).wait()
    return obj if is_root else pickling.loads(data.tobytes())


def allgather_object(obj: Any, name: str | None = None, *, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's `obj`, in rank order."""
    context.current().settle()
    wire_name = None if name is None else f"{name}.t"
    payload = np.frombuffer(_pickled(obj, "allgather", wire_name, process_set), np.uint8)
    data, lengths = collectives.allgather(payload, wire_name, process_set, SYNC, with_rows=True).wait()
    parts = np.split(data, np.cumsum(lengths)[:-1])
    return [pickling.loads(part.tobytes()) for part in parts]


def check_same_keys(operation: str, mine: list[str], process_set: ProcessSet) -> None:
    """Checks that all ranks have the same keys: if one rank lacks a key, the others wait for its broadcast.

    The ranks tell each other under `<operation>.keys`.
    """
    by_rank = allgather_object(mine, f"{operation}.keys", process_set=process_set)
    ranks = process_set.ranks or []
    first, firsts = ranks[0], set(by_rank[0])
    for rank, theirs in zip(ranks, map(set, by_rank), strict=True):
        if text := difference_of_keys(first, firsts, rank, theirs):
            raise MismatchError(
                f"{operation}: {text}: all ranks must give the same keys (this is rank "
                f"{context.rank()})\nhint: build the same model on all ranks"
            )


def difference_of_keys(first: int, firsts: set[str], rank: int, theirs: set[str]) -> str:
    """Which of two ranks lacks which keys; "" if they have the same."""
    lacks = ((rank, first, firsts - theirs), (first, rank, theirs - firsts))
    return ", and ".join(
        f"rank {one} lacks {_some(names)}, which rank {other} has" for one, other, names in lacks if names
    )


def _some(names: set[str]) -> str:
    return ", ".join(map(quoted, sorted(names)[:5])) + (", ..." if len(names) > 5 else "")


def _pickled(obj: Any, label: str, name: str | None, process_set: ProcessSet) -> bytes:
    try:
        return pickling.dumps(obj)
    except Exception as error:
        # Pickling runs the object's own code: any exception, and the peers are waiting already.
        collectives.refuse(label, name, TypeError(f"cannot pickle {type(obj).__name__}: {error}"), process_set)
