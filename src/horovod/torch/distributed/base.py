# SPDX-License-Identifier: Apache-2.0
"""A process group of torch.distributed as a process set of ours: who is in it, and how a call becomes work.

torch names ranks by their number in the group, the core by their number in the world; `_ranks` translates. Unnamed
operations meet by order, which is torch's rule as well. Two groups of the same ranks share a process set, but each has
an order of its own in torch: the second one names its operations.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from horovod.core import context as contexts
from horovod.core.native import SYNC
from horovod.core.operations import Operation, TimeLimit
from horovod.core.process_sets import ProcessSet
from horovod.core.requests import Prepared
from horovod.torch.distributed.errors import DestroyedError
from horovod.torch.distributed.reduce_ops import Reductions
from horovod.torch.distributed.work import OperationsWork, limited
from horovod.torch.tensors import collectives

__all__ = ["GroupBase", "part_of"]

_NAMES = 64  # of a group that shares its set: so many of its operations can be in flight


def part_of(name: str | None, index: int) -> str | None:
    """The name of one of a call's operations. The first one has the call's, by which the peers hear of an error."""
    return name if name is None or index == 0 else f"{name}.{index}"


class GroupBase(dist.ProcessGroup):
    """The group of the members of `process_set`."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(
        self,
        process_set: ProcessSet,
        ranks: Sequence[int],
        world_rank: int,
        timeout: timedelta,
        *,
        prefix: str = "",
        on_shutdown: Callable[[], None] | None = None,
    ) -> None:
        """`ranks`: of the world, by rank in the group. `prefix`: of the names of operations; empty: they have none."""
        super().__init__(ranks.index(world_rank), len(ranks))
        self._set = process_set
        self._context = contexts.current()
        # The requests of allreduces whose caller waits at once and which have no name, by operation, dtype and shape.
        self._prepared: dict[Any, Prepared] = {}
        self._ranks = list(ranks)
        self._index = self._ranks.index(world_rank)
        self._world_rank = world_rank
        self._reductions = Reductions(process_set)
        self._on_shutdown = on_shutdown
        self._name, self._desc = "", "undefined"
        self._newest_name: str | None = None
        self._names = itertools.cycle([f"{prefix}.{number}" for number in range(_NAMES)]) if prefix else None
        self._named: dict[str, OperationsWork] = {}
        self._coalesced: list[OperationsWork] | None = None
        self._closed = False
        self.set_timeout(timeout)

    # Identity

    def rank(self) -> int:
        return self._index

    def size(self) -> int:
        return len(self._ranks)

    def name(self) -> str:
        return "hvd"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        """The host first: it is where torch puts pickled objects."""
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: Any) -> GroupBase:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """How long a rank waits for an operation; then the job ends."""
        self._seconds = timeout.total_seconds()
        self._limits: dict[str, TimeLimit] = {}
        self._allreduce_limit = self._limit("allreduce")

    def _limit(self, label: str) -> TimeLimit:
        limit = self._limits.get(label)
        if limit is None:
            limit = self._limits[label] = TimeLimit(self._seconds, functools.partial(self._too_late, label))
        return limit

    def _too_late(self, label: str, seconds: float, missing: str) -> str:
        known = f": missing {missing}, which did not call it" if missing else ""
        return (
            f"rank {self._world_rank} has waited {seconds:g} s, the timeout of torch.distributed, for {label} in the "
            f"process group {self._name!r} of ranks {self._ranks}{known}\n"
            "hint: a rank has not called it, or is late. "
            f"HOROVOD_STALL_CHECK_TIME_SECONDS={max(1, min(10, int(seconds / 3)))} makes a report show where that rank "
            "is. To wait longer, give init_process_group or new_group a timeout"
        )

    def shutdown(self) -> None:
        """Ends the group: operations in flight go on, new calls raise."""
        self._closed = True
        self._prepared = {}
        ends, self._on_shutdown = self._on_shutdown, None
        if ends is not None:
            ends()

    def abort(self) -> None:
        self.shutdown()

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        """The core finds ranks that call different operations by itself."""

    # How a call becomes work

    def _next_name(self) -> str | None:
        """None: it meets by order."""
        self._check_open()
        if self._names is None:
            return None
        name = self._newest_name = next(self._names)
        before = self._named.pop(name, None)
        if before is not None and not before.is_completed():
            before.wait()
        return name

    def _tell(self, label: str, error: Exception) -> None:
        """Tells the peers that this rank's newest call has failed."""
        collectives.tell(label, self._newest_name, error, self._set)

    def _check_open(self) -> None:
        if self._closed:
            raise DestroyedError(
                f"the process group {self._name!r} was destroyed\nhint: call init_process_group or new_group again"
            )

    def _started(
        self,
        label: str,
        operations: Sequence[Operation],
        outputs: list[Any],
        opts: Any = None,
        deliver: Callable[[list[Any]], None] | None = None,
        name: str | None = None,
    ) -> OperationsWork:
        limit = limited(self._limit(label), getattr(opts, "timeout", None))
        work = OperationsWork(operations, outputs, limit, deliver)
        if name is not None:
            self._named[name] = work
        return self._recorded(work)

    def _recorded(self, work: OperationsWork) -> OperationsWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _flags(self, opts: Any) -> int:
        return 0 if getattr(opts, "asyncOp", True) else SYNC

    def _root(self, opts: Any) -> int:
        root: int = self._ranks[opts.rootRank]
        return root

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced, self._prepared = [], {}

    def _end_coalescing(self, device: torch.device) -> OperationsWork:
        works, self._coalesced = self._coalesced or [], None

        def wait_for_all(_: list[Any]) -> None:
            for work in works:
                work.wait()

        return OperationsWork((), [one for work in works for one in work._outputs], self._limit("all"), wait_for_all)
