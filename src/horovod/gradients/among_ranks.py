# SPDX-License-Identifier: Apache-2.0
"""Counts steps, and brings small values and texts to all ranks: for the checks of optimizers.

All messages are allreduces: a rank that has joined takes part in no other operation, and gives zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from horovod.core import context as contexts
from horovod.core import native
from horovod.core.arrays import collectives
from horovod.core.calls import WAIT_SLICE_MS
from horovod.core.exceptions import HorovodInternalError, NotInitializedError
from horovod.core.native import SYNC, Sum
from horovod.core.operations import Operation
from horovod.core.process_sets import ProcessSet
from horovod.settings import Settings

__all__ = ["ANSWER_TIMEOUT_S", "NoAnswerError", "Steps", "answer", "listed", "of_all", "texts_of_all"]

ANSWER_TIMEOUT_S = 10.0
_SHOWN_RANKS = 8
Wait = Callable[[Operation], Any]


class NoAnswerError(Exception):
    """Another rank takes no part in an operation of a check."""


def answer(operation: Operation, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
    """Waits for an operation of a check. The job does not need the check, so every failure is a NoAnswerError.

    Not Operation.wait: that waits for ever, and has the engine look for a deadlock, which ends the job.
    """
    deadline, code = time.monotonic() + timeout_s, native.PENDING
    context = operation.context
    try:
        while code == native.PENDING and time.monotonic() < deadline and context is contexts.current():
            code = context.wait(context.argument, operation.handle, WAIT_SLICE_MS, native.scratch.status_argument)
        if code == native.PENDING:
            raise NoAnswerError
        operation.wait()
    except (HorovodInternalError, NotInitializedError) as error:
        raise NoAnswerError from error


class Steps:
    """Counts the steps of an optimizer, from 0 again after init and after a join: before that, some ranks did more.

    `settings`: those of the generation; valid once begin() has given a number. `is_after_join`: the count began then.
    """

    settings: Settings
    is_after_join = False

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._generation: Any = None
        self._has_peers = False
        self._joins = 0
        self._count = 0

    def begin(self) -> int | None:
        """The number of the step that begins, from 0; None if this rank has no peers. The same until end()."""
        if not contexts.is_initialized():
            return None
        generation = contexts.current()
        if generation is not self._generation:
            self.settings = Settings.from_environment()
            self._generation, self._joins, self._count, self.is_after_join = generation, generation.joins, 0, False
            self._has_peers = self._process_set.has_peers()
        elif generation.joins != self._joins:
            self._joins, self._count, self.is_after_join = generation.joins, 0, True
        return self._count if self._has_peers else None

    def end(self) -> None:
        """The step is complete. One that has failed is not: some ranks may not have begun it."""
        self._count += 1


def of_all(values: Any, name: str, process_set: ProcessSet, wait: Wait = Operation.wait) -> np.ndarray[Any, Any]:
    """The values of all ranks, in rows; zeros of one that has joined."""
    table = np.zeros((process_set.size() or 1, len(values)), getattr(values, "dtype", np.int64))
    table[process_set.rank() or 0] = values
    wait(collectives.allreduce(table, name, (Sum, None, 1.0, 1.0, process_set), True, SYNC))
    return table


def texts_of_all(text: str, name: str, process_set: ProcessSet, wait: Wait = Operation.wait) -> list[str]:
    """The texts of all ranks; an empty one of a rank that has joined."""
    data = np.frombuffer(text.encode(), np.uint8)
    lengths = of_all([len(data)], f"{name}.length", process_set, wait)[:, 0]
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(data)] = data
    rows = of_all(padded, name, process_set, wait)
    return [rows[place, :length].tobytes().decode() for place, length in enumerate(lengths)]


def listed(ranks: list[int]) -> str:
    """For example `rank 1` and `ranks 1, 2`; the first of many."""
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS])) + (", ..." if len(ranks) > _SHOWN_RANKS else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
