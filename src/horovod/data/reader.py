# SPDX-License-Identifier: Apache-2.0
"""ParquetReader: the batches of one rank, epoch after epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from horovod.core.wording import counted, quoted
from horovod.data import parquet, shuffle
from horovod.data.arrow_cache import ArrowCache
from horovod.data.parquet import Columns, Plan

__all__ = ["ParquetReader"]

_BUFFER_GROUPS = 4
_BUFFER_BYTES = 64 << 20


class _Epoch:
    """The batches of an epoch, for a thread that reads while another closes, as a prefetching data set does."""

    def __init__(self, batches: Generator[Columns, None, None]) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self._is_closed = False

    def __iter__(self) -> Iterator[Columns]:
        return self

    def __next__(self) -> Columns:
        with self._lock:
            if self._is_closed:
                raise StopIteration
            return next(self._batches)

    def close(self) -> None:
        self._is_closed = True
        with self._lock:
            self._batches.close()


class ParquetReader:
    """Reads a rank's share of a Parquet data set as batches of NumPy arrays.

    `data` is a path or URL (any of fsspec), a list of them, or a `Plan`. Each iteration is one epoch, and yields
    {column: array}, the row being the first dimension; a list column has more dimensions. All ranks get the same number
    of rows, and batches, in an epoch. The arrays are contiguous, writable and the caller's. Integers stay integers.

    With `shuffle`, the row groups are permuted for all ranks, and each rank permutes the rows of a pool: at least
    `buffer_rows` rows, by default four groups or 64 MiB. The batches depend on (seed, epoch, rank, size) only, not on
    `threads`.

    `cache="disk"` or `"memory"` writes decoded groups to the local disk or /dev/shm in the first epoch, and maps them
    later (arrow_cache.py). `transform` changes a piece of rows, {column: array}, before they are pooled; it may change
    the columns, not the number of rows. The arrays that it gets may be read-only.

    `position()` is a dict of (epoch, row); `restore` goes there. Use one iteration at a time; after one that was left
    early, the next gives the rest of its epoch. `close`, or `with`, ends
    the threads and gives the cache up.
    """

    def __init__(
        self,
        data: str | Sequence[str] | Plan,
        columns: Sequence[str] | None = None,
        batch_size: int = 32,
        rank: int = 0,
        size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        buffer_rows: int | None = None,
        threads: int = 2,
        cache: str | None = None,
        drop_last: bool = False,
        transform: Callable[[Columns], Columns] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_size < 1 or threads < 1:
            raise ValueError(f"batch_size is {batch_size} and threads is {threads}: expected at least 1")
        if cache not in (None, "disk", "memory"):
            raise ValueError(f"cache is {cache!r}: expected None, 'disk' or 'memory'")
        self.plan = data if isinstance(data, Plan) else parquet.plan(data, columns, storage_options)
        self.columns = list(self.plan.types if columns is None else columns)
        self.batch_size, self.rank, self.size = batch_size, rank, size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self._rows_of_groups = [group.rows for group in self.plan.groups]
        self.rows = sum(piece.stop - piece.start for piece in self._pieces(0))
        self.buffer_rows = (buffer_rows or self._default_buffer()) if shuffle else 1
        self._threads = threads
        self._transform = transform
        self._epoch = self._row = 0
        self._running: _Epoch | None = None
        self._is_closed = False
        is_local = self.plan.share is not None  # decoded files on this machine, which need no cache
        key = self.plan.to_json() + repr(self.columns)
        self._cache = ArrowCache(key, cache == "memory") if cache and not is_local else None

    def __len__(self) -> int:
        """The number of batches of an epoch; the same on all ranks."""
        return self.rows // self.batch_size if self.drop_last else -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Columns]:
        """Yields the batches of the next epoch, or the rest of one that was begun."""
        if self._is_closed:
            raise ValueError("the reader is closed")
        if self._running is not None:
            self._running.close()
        self._running = _Epoch(self._batches())
        return self._running

    def endless(self) -> Iterator[Columns]:
        """Yields batches of epoch after epoch."""
        if len(self) == 0:
            raise ValueError(f"there is not one full batch: each rank has {counted(self.rows, 'row')}")
        return self._endless()

    def _endless(self) -> Iterator[Columns]:
        while not self._is_closed:
            yield from iter(self)

    def position(self) -> dict[str, int]:
        """The epoch, and the rows of it that this rank has read, for a checkpoint."""
        return {"epoch": self._epoch, "row": self._row, "size": self.size}

    def restore(self, position: Mapping[str, int]) -> None:
        """Goes on at a position.

        In a world of another size it is the nearest one: some rows of this epoch then come twice, or not at all.
        """
        row = position["row"] * position.get("size", self.size) // self.size
        self._epoch, self._row = position["epoch"] + row // self.rows, row % self.rows

    def close(self) -> None:
        """Ends the threads, and gives the cache up. Another thread may be reading: it gets no further batch."""
        self._is_closed = True
        if self._running is not None:
            self._running.close()
            self._running = None
        if self._cache is not None:
            self._cache.close()

    def __enter__(self) -> ParquetReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _pieces(self, epoch: int) -> list[parquet.Piece]:
        if self.plan.share is not None:
            return parquet.own_share(self._rows_of_groups, self.plan.share, self.seed, epoch, self.shuffle)
        return parquet.shard(self._rows_of_groups, self.rank, self.size, self.seed, epoch, self.shuffle)

    def _default_buffer(self) -> int:
        largest = max(self._rows_of_groups)
        row_bytes = max(self.plan.nbytes // self.plan.rows, 1)
        return max(1, min(_BUFFER_GROUPS * largest, max(_BUFFER_BYTES // row_bytes, self.batch_size)))

    def _changed(self, piece: Columns) -> Columns:
        rows = len(next(iter(piece.values())))
        changed = self._transform(piece) if self._transform else piece
        for name, values in changed.items():
            if len(values) != rows:
                raise ValueError(
                    f"the transformation made {counted(len(values), 'row')} of {rows} in column {quoted(name)}\n"
                    "hint: it may change columns, not the number of rows: filter before the data is written"
                )
        return changed

    def _batches(self) -> Generator[Columns, None, None]:
        pieces = self._pieces(self._epoch)
        pools = shuffle.pools_of([piece.stop - piece.start for piece in pieces], self.buffer_rows)
        skip = self._row
        while skip >= pools[0][2]:  # pools that were read before
            skip -= pools.pop(0)[2]
        seed = (self.seed, self._epoch, self.rank, self.size) if self.shuffle else None
        end = self._row + (self.rows - self._row) // self.batch_size * self.batch_size if self.drop_last else self.rows
        source = parquet.read(self.plan, pieces[pools[0][0] :], self.columns, self._threads, self._cache)
        changed = source if self._transform is None else map(self._changed, source)
        try:
            for batch in shuffle.batches_of(changed, pools, self.batch_size, seed, skip, self.drop_last):
                self._row += len(next(iter(batch.values())))
                if self._row == end:  # before the batch is handed on: a consumer may stop there
                    self._epoch, self._row = self._epoch + 1, 0
                    source.close()
                    yield batch
                    return
                yield batch
            self._epoch, self._row = self._epoch + 1, 0  # not a full batch was left
        finally:
            source.close()
