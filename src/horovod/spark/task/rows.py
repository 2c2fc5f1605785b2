# SPDX-License-Identifier: Apache-2.0
"""Rows of a DataFrame on the local disk of the rank that trains on them.

A Spark task writes its partition as Arrow files before its rank starts (`written`). Spark makes the partitions nearly
equal; ranks with too many rows send the surplus to others (`opened`). They also remove the files' names, so that the
disk is free again once the rank has ended, however it ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horovod.data.parquet import Group, Plan, to_numpy
from horovod.settings import Settings, current_environment

__all__ = ["VALIDATION", "Part", "moves", "opened", "written"]

VALIDATION = "__horovod_validation"  # a column: true in rows for validation
NAMES = ("training", "validation")
_GROUP_BYTES = 16 << 20  # of a record batch, and of what a rank sends to another at a time
_SHAPES_BYTES = 32 << 10  # of an agent's message, which has a limit (launcher/placement/joined.py)


@dataclasses.dataclass(frozen=True)
class Part:
    """The training rows, or the validation rows: how many each rank's task has written, and the bytes of all."""

    rows: tuple[int, ...]
    nbytes: int

    @property
    def total(self) -> int:
        """The rows of all ranks."""
        return sum(self.rows)


@contextlib.contextmanager
def written(batches: Iterator[Any], index: int) -> Iterator[dict[str, Any]]:
    """Writes a partition to a folder of its own; gives the folder and what is in it, for the driver.

    `rows` and `bytes` for training and validation; `shapes`: of the values of each column, None for one that is not
    known. The folder is in Spark's own, which Spark removes when the executor ends. Once the agent runs,
    its keeper removes it too (launcher/host/remote_agent.py).
    """
    folders = current_environment().get("SPARK_LOCAL_DIRS", "").split(",")
    folder = Path(tempfile.mkdtemp(prefix="horovod-rows-", dir=folders[index % len(folders)] or None))
    try:
        yield _write(batches, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(batches: Iterator[Any], folder: Path) -> dict[str, Any]:
    import pyarrow.compute as pc

    shapes: list[Any] = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_File(folder / name)) for name in NAMES]
        for batch in batches:
            if VALIDATION in batch.schema.names:
                mark = batch.column(VALIDATION)
                batch = batch.drop_columns([VALIDATION])
                files[1].add(batch.filter(mark))
                batch = batch.filter(pc.invert(mark))
            shapes = shapes or _shapes(batch)
            files[0].add(batch)
    if len(str(shapes)) > _SHAPES_BYTES:
        shapes = []
    rows, nbytes = [file.rows for file in files], [file.nbytes for file in files]
    return {"folder": str(folder), "rows": rows, "bytes": nbytes, "shapes": shapes}


def _shapes(batch: Any) -> list[list[int] | None]:
    if not batch.num_rows:
        return []
    found: list[list[int] | None] = []
    for name, column in zip(batch.schema.names, batch.slice(0, 1).columns, strict=True):
        try:
            found.append(list(to_numpy(column, name, "", 0).shape[1:]))
        except ValueError:  # the reader says why, with the row
            found.append(None)
    return found


class _File:
    """An Arrow file, made with the first rows. Its record batches are of about _GROUP_BYTES."""

    def __init__(self, path: Path) -> None:
        self.rows = self.nbytes = 0
        self._path = path
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._waiting_bytes = 0

    def __enter__(self) -> _File:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def add(self, batch: Any) -> None:
        """Writes a record batch, perhaps later. Holds at most about _GROUP_BYTES."""
        rows = max(1, _GROUP_BYTES * batch.num_rows // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            self._waiting.append(piece)
            self._waiting_bytes += piece.nbytes
            if self._waiting_bytes >= _GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._writer = self._writer or pa.ipc.new_file(str(self._path), table.schema)
        self._writer.write_table(table)
        self.rows += table.num_rows
        self.nbytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0


def opened(parts: Sequence[Part]) -> tuple[Plan | None, Plan | None]:
    """This rank's training and validation rows, the same number for each rank; a part without rows is None.

    If some ranks have more rows than others, all ranks join a world for a moment to move them.
    """
    import horovod.core as hvd

    settings = Settings.from_environment()
    folder = Path(settings.spark_rows)
    moving = any(moves(part.rows) for part in parts)
    if moving:
        hvd.init()
    plans = [_opened(folder / name, part, settings.rank or 0) for name, part in zip(NAMES, parts, strict=True)]
    if moving:
        hvd.shutdown()
    shutil.rmtree(folder)
    return plans[0], plans[1]


def _opened(path: Path, part: Part, rank: int) -> Plan | None:
    if not part.total:
        return None
    own = _groups(path)
    planned = moves(part.rows)
    if planned:
        own = _move(own, planned, part, rank, path)
    types = {field.name: str(field.type) for field in _reader(own[0].file).schema}
    return Plan(tuple(own), types, share=part.total // len(part.rows))


def _reader(file: str) -> Any:
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(file))


def _groups(path: Path, first_row: int = 0) -> list[Group]:
    """The record batches of a file, which stays open until this process ends."""
    if not path.exists():
        return []
    file = f"/proc/{os.getpid()}/fd/{os.open(path, os.O_RDONLY)}"
    reader, found = _reader(file), []
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        found.append(Group(file, number, batch.num_rows, batch.nbytes, first_row))
        first_row += batch.num_rows
    return found


def moves(rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """(from, to, number of rows): what makes the ranks' rows differ by one at most. Equal on all ranks."""
    share, more = divmod(sum(rows), len(rows))
    wanted = [share] * len(rows)
    for rank in sorted(range(len(rows)), key=lambda rank: -rows[rank])[:more]:
        wanted[rank] += 1
    surplus = [[rank, have - want] for rank, (have, want) in enumerate(zip(rows, wanted, strict=True)) if have > want]
    planned = []
    for rank, (have, want) in enumerate(zip(rows, wanted, strict=True)):
        while have < want:
            giver = surplus[-1]
            count = min(giver[1], want - have)
            planned.append((giver[0], rank, count))
            have += count
            giver[1] -= count
            if not giver[1]:
                surplus.pop()
    return planned


def _move(own: list[Group], planned: list[tuple[int, int, int]], part: Part, rank: int, path: Path) -> list[Group]:
    """Sends the last rows of those that have too many, some at a time; the groups of this rank after that."""
    import pyarrow as pa

    import horovod.core as hvd

    at_a_time = max(1, _GROUP_BYTES * part.total // max(part.nbytes, 1))
    received = path.with_suffix(".moved")
    with _File(received) as file:
        for start in range(0, max(count for _, _, count in planned), at_a_time):
            sent = [b""] * len(part.rows)
            for giver, taker, count in planned:
                if giver == rank and start < count:
                    own, rows = _without_last(own, min(at_a_time, count - start))
                    sent[taker] = _bytes_of(rows)
            data = np.frombuffer(b"".join(sent), np.uint8).copy()
            answer, sizes = hvd.alltoall(data, [len(content) for content in sent], name=f"rows.{path.name}.{start}")
            at = 0
            for size in sizes.tolist():
                if size:
                    for batch in pa.ipc.open_stream(answer[at : at + size].tobytes()):
                        file.add(batch)
                at += size
    return own + _groups(received, sum(group.rows for group in own))


def _without_last(own: list[Group], count: int) -> tuple[list[Group], list[Any]]:
    """The groups without their last rows, and these rows as record batches."""
    left, taken = list(own), []
    while count:
        last = left.pop()
        rows = min(count, last.rows)
        stays = last.rows - rows
        taken.append(_reader(last.file).get_batch(last.number).slice(stays, rows))
        if stays:
            left.append(last._replace(rows=stays, nbytes=last.nbytes * stays // last.rows))
        count -= rows
    return left, taken


def _bytes_of(batches: list[Any]) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content
