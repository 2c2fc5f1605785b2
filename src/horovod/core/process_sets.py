# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks that operate together. Today there is one: the global set, all ranks, number 0 in the native core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.core import context
from horovod.core.exceptions import InvalidRequestError

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "number_of", "remove_process_set"]

_NOT_YET = "process sets other than the global one are not supported yet\nhint: leave process_set at its default"


class ProcessSet:
    """A set of world ranks, sorted. `process_set_id` is None until it is registered; the global set's is 0."""

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        ranks = list(ranks_or_comm)
        if not all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
            raise InvalidRequestError(f"a process set is a list of ranks: expected ints, seen {ranks!r}")
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """Number of ranks in the set; None where it is not registered."""
        if self.process_set_id is None:
            return None
        return context.size()

    def rank(self) -> int | None:
        """This process' index in the set; None where it is not registered."""
        if self.process_set_id is None:
            return None
        return context.rank()

    def included(self) -> bool:
        """Whether this process is a member. Raises NotInitializedError before init."""
        return self.ranks is None or context.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


class _GlobalProcessSet(ProcessSet):
    process_set_id = 0

    def __init__(self) -> None:
        super().__init__([])

    @property
    def ranks(self) -> list[int] | None:
        """All ranks of the running world; None before init."""
        return list(range(context.size())) if context.is_initialized() else None

    @ranks.setter
    def ranks(self, value: list[int] | None) -> None:
        pass  # the world decides


global_process_set = _GlobalProcessSet()


def number_of(process_set: ProcessSet | None) -> int:
    """The native core's number of a set. Raises InvalidRequestError for one that is not registered."""
    if process_set is global_process_set or process_set is None:
        return 0
    if not isinstance(process_set, ProcessSet):
        raise InvalidRequestError(f"process_set: expected a ProcessSet, seen {process_set!r}")
    raise InvalidRequestError(f"{process_set} is not registered; {_NOT_YET}")


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set of ranks. Not supported yet."""
    raise NotImplementedError(_NOT_YET)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set away; False for the global one, which always stays. As only that exists, nothing is ever removed."""
    return False
