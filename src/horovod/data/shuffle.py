# SPDX-License-Identifier: Apache-2.0
"""Batches from pieces: a pool of rows, permuted if asked, from which batches are taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from horovod.data.parquet import Columns

__all__ = ["batches_of", "pools_of"]


def pools_of(sizes: list[int], buffer_rows: int) -> list[tuple[int, int, int]]:
    """Cuts pieces of these sizes into pools of at least `buffer_rows` rows: (first piece, end, rows) of each."""
    pools = []
    first = rows = 0
    for index, size in enumerate(sizes):
        rows += size
        if rows >= buffer_rows or index == len(sizes) - 1:
            pools.append((first, index + 1, rows))
            first, rows = index + 1, 0
    return pools


def batches_of(
    pieces: Iterator[Columns],
    pools: list[tuple[int, int, int]],
    batch_size: int,
    seed: tuple[int, ...] | None,
    skip: int = 0,
    drop_last: bool = False,
) -> Iterator[Columns]:
    """Yields batches of `batch_size` rows; `pieces` are those of `pools`, in order.

    With a seed, the rows of a pool come in a permutation that depends on the seed and the pool's first piece only, so a
    resumed reader makes the same one. `skip` rows of the first pool are left out. The arrays are contiguous, writable
    and the caller's own.
    """
    rest: Columns | None = None  # fewer rows than a batch
    for first, end, rows in pools:
        pool = _joined([next(pieces) for _ in range(first, end)])
        order = np.arange(rows) if seed is None else np.random.default_rng((*seed, first)).permutation(rows)
        order, skip = order[skip:], 0
        if rest is not None:
            missing = batch_size - _rows(rest)
            rest = _joined([rest, _taken(pool, order[:missing])])
            order = order[missing:]
            if _rows(rest) < batch_size:
                continue
            yield rest
            rest = None
        whole = len(order) - len(order) % batch_size
        for start in range(0, whole, batch_size):
            yield _taken(pool, order[start : start + batch_size])
        if whole < len(order):
            rest = _taken(pool, order[whole:])
        del pool
    if rest is not None and not drop_last:
        yield rest


def _rows(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


def _taken(columns: Columns, order: np.ndarray[Any, Any]) -> Columns:
    return {name: np.take(values, order, axis=0) for name, values in columns.items()}


def _joined(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
