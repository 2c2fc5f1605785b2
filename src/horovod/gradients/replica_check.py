# SPDX-License-Identifier: Apache-2.0
"""Compares the ranks' parameters and options before a step (step 1 of a gradient's way).

A forgotten broadcast_parameters, or a learning rate that one rank alone changes, trains wrong in silence. Checksums
travel, by allreduces: a rank that has joined gives zeros, and does not count. If the first message, of one number for
each rank, shows no difference, there is no other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from horovod.core import context as contexts
from horovod.core.arrays import collectives
from horovod.core.exceptions import MismatchError
from horovod.core.native import SYNC, Sum
from horovod.core.process_sets import ProcessSet
from horovod.core.tracebacks import warn
from horovod.core.wording import counted, quoted
from horovod.settings import Settings

__all__ = ["ReplicaCheck", "checksum", "sample"]

_SAMPLE = 16384  # of a large parameter so many elements are looked at


def checksum(value: Any, sampled: Callable[[Any, int], np.ndarray[Any, Any]] | None = None) -> int:
    """Of an array or of any object with a repr. `sampled(value, count)`: about so many elements, as an array."""
    if sampled is not None:
        return zlib.crc32(np.ascontiguousarray(sampled(value, _SAMPLE)).tobytes())
    return zlib.crc32(repr(value).encode())


def sample(array: Any, count: int) -> np.ndarray[Any, Any]:
    """Of an array of NumPy's, or what it makes one of."""
    flat = np.asarray(array).reshape(-1)
    return flat[:: max(1, flat.size // count)]


class ReplicaCheck:
    """The checks of one optimizer. `name`: different for optimizers whose steps may be at one time, equal on all ranks.

    `first`: the step, counted from 0, before which ranks have to be equal. After a new init, such as one of an elastic
    job, that step is checked again. So is the next step after a join, which leaves ranks with old weights.
    """

    def __init__(self, name: str, process_set: ProcessSet, first: int = 0) -> None:
        self._first = first
        self._name = name
        self._process_set = process_set
        self._generation: Any = None
        self._joins = 0
        self._steps = 0
        self._every = 0
        self._is_error = False

    def is_due(self) -> bool:
        """Counts a step. Whether compare() is to be called before it; the same on all ranks."""
        if not contexts.is_initialized() or not self._process_set.has_peers():
            return False
        generation = contexts.current()
        if generation is not self._generation:
            settings = Settings.from_environment()
            self._generation, self._steps, self._joins = generation, 0, generation.joins
            self._every, self._is_error = settings.replica_check_steps, settings.replica_check == "error"
        joined = generation.joins != self._joins
        if joined:  # before it, ranks may have done different numbers of steps
            self._joins, self._steps = generation.joins, 0
        step, self._steps = self._steps, self._steps + 1
        in_turn = self._every > 1 and step > 0 and step % self._every == 0
        return self._every > 0 and (step == self._first or joined or in_turn)

    def compare(self, described: Iterable[tuple[str, int]]) -> None:
        """Compares names and checksums in order. Raises MismatchError, or warns on one rank, if they differ."""
        pairs = list(described)
        names = [name for name, _ in pairs]
        own = zlib.crc32(repr(pairs).encode()) + 1  # 0 is a rank that has joined
        totals = self._of_all([own], "total")[:, 0]
        present = np.flatnonzero(totals)
        if len(set(totals[present])) < 2:
            return
        counts = self._of_all([len(pairs)], "count")[present, 0]
        ranks = self._process_set.ranks or []
        if len(set(counts)) > 1:
            what = f"the numbers of parameters and options: {', '.join(map(str, counts))}"
            differing = [ranks[place] for place, count in zip(present, counts, strict=True) if count != counts[0]]
        else:
            sums = self._of_all([value for _, value in pairs], "each")[present]
            differs = (sums != sums[0]).any(axis=0)
            first = int(np.flatnonzero(differs)[0]) if differs.any() else 0
            others = f", and {counted(int(differs.sum()) - 1, 'other')} after it" if differs.sum() > 1 else ""
            what = f"{quoted(names[first])}{others}"
            differing = [ranks[place] for place in present[sums[:, first] != sums[0, first]]]
        text = (
            f"before step {self._steps} of {self._name}, the ranks differ in {what}; rank {ranks[present[0]]} is "
            f"unlike {', '.join(f'rank {rank}' for rank in differing[:8])}{', ...' if len(differing) > 8 else ''}\n"
            "hint: broadcast parameters and optimizer state before training and after a join, and change options such "
            "as the learning rate on all ranks; HOROVOD_REPLICA_CHECK_STEPS=0 turns this check off"
        )
        if self._is_error:
            raise MismatchError(text)
        if (self._process_set.rank() or 0) == present[0]:
            warn(text)

    def _of_all(self, values: Sequence[int], what: str) -> np.ndarray[Any, Any]:
        """The values of all ranks, in rows; zeros of one that has joined."""
        table = np.zeros((self._process_set.size() or 1, len(values)), np.int64)
        table[self._process_set.rank() or 0] = values
        how = (Sum, None, 1.0, 1.0, self._process_set)
        collectives.allreduce(table, f"replica_check.{self._name}.{what}", how, True, SYNC).wait()
        return table
