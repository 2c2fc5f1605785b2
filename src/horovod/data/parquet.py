# SPDX-License-Identifier: Apache-2.0
"""A Parquet data set as row groups: the plan, each rank's share of its rows, and the reading of the share.

`plan` reads the footers once. `shard` is arithmetic: it says which rows of which groups a rank reads in an epoch.
`read` yields these pieces in order, decoded by threads.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from horovod.core.wording import counted, on_one_line, quoted

__all__ = ["Columns", "Group", "Piece", "Plan", "own_share", "plan", "read", "shard"]

Columns = dict[str, np.ndarray[Any, Any]]
ALIVE_GROUPS = 2  # decoded, and not yet handed on
_HIDDEN = re.compile(r"/[_.]")  # of those that write: _temporary/, _SUCCESS, .part-0.parquet.crc


class Group(NamedTuple):
    """A row group: its file, its number there, its rows, its bytes when decoded, and the file's rows before it."""

    file: str
    number: int
    rows: int
    nbytes: int
    first_row: int


class Piece(NamedTuple):
    """The rows [start, stop) of a group, which is given by its number in the plan."""

    group: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The row groups of a data set and the types of its columns. Small, and can be pickled or written as JSON.

    With a `share`, the groups are record batches of Arrow files that one rank alone reads: that many rows in an epoch.
    """

    groups: tuple[Group, ...]
    types: Mapping[str, str]
    storage_options: Mapping[str, Any] | None = None
    share: int | None = None

    @property
    def rows(self) -> int:
        """The number of rows of all groups."""
        return sum(group.rows for group in self.groups)

    @property
    def nbytes(self) -> int:
        """The decoded size of all columns, as the footers say it."""
        return sum(group.nbytes for group in self.groups)

    def file_of(self, group: Group) -> str:
        """A group's file, in words for an error."""
        return group.file if self.share is None else "this rank's rows of the DataFrame"

    def to_json(self) -> str:
        """The plan as text, without the storage options, which may hold secrets."""
        return json.dumps({"groups": self.groups, "types": dict(self.types)})

    @classmethod
    def from_json(cls, text: str, storage_options: Mapping[str, Any] | None = None) -> Plan:
        """The plan that `to_json` wrote."""
        entries = json.loads(text)
        return cls(tuple(Group(*group) for group in entries["groups"]), entries["types"], storage_options)


def filesystem(path: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The fsspec file system of a path or URL, and the path in it."""
    import fsspec

    fs, inside = fsspec.core.url_to_fs(path, **(storage_options or {}))
    return fs, inside


def plan(
    path: str | Sequence[str],
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Plan:
    """Reads the footers of a Parquet data set: a folder, a file or a list of files, by path or fsspec URL.

    `columns` are those that must be there; the others are left out. Raises FileNotFoundError if there are no files, and
    ValueError, which names the column and the file, if a file lacks a column or has it with another type.
    """
    groups: list[Group] = []
    types: dict[str, str] = {}
    first = ""
    for url, schema, sizes in _footers(path, storage_options):
        found = {field.name: str(field.type) for field in schema}
        wanted = list(types or found) if columns is None else list(columns)
        for name in wanted:
            if name not in found:
                known = ", ".join(map(quoted, sorted(found)))
                raise ValueError(f"{on_one_line(url)} has no column {quoted(name)}\nhint: it has {known}")
            if types and types[name] != found[name]:
                raise ValueError(
                    f"column {quoted(name)} is {found[name]} in {on_one_line(url)}, and {types[name]} in "
                    f"{on_one_line(first)}\n"
                    "hint: write all files with one schema"
                )
        if not types:
            types, first = {name: found[name] for name in wanted}, url
        row = 0
        for number, (rows, nbytes) in enumerate(sizes):
            groups.append(Group(url, number, rows, nbytes, row))
            row += rows
    return Plan(tuple(group for group in groups if group.rows), types, storage_options)


def _footers(path: str | Sequence[str], storage_options: Mapping[str, Any] | None) -> Iterator[tuple[str, Any, Any]]:
    from pyarrow import parquet

    for given in [path] if isinstance(path, str) else path:
        fs, inside = filesystem(given, storage_options)
        fs.invalidate_cache()  # Spark may have written since a listing was kept
        files = sorted(fs.find(inside)) if fs.isdir(inside) else [inside]
        files = [name for name in files if not _HIDDEN.search(name.removeprefix(inside))]
        if not files or not fs.exists(files[0]):
            raise FileNotFoundError(f"there are no Parquet files in {on_one_line(given)}")
        for name in files:
            with fs.open(name, "rb") as file:
                data = parquet.read_metadata(file)
            sizes = [data.row_group(index) for index in range(data.num_row_groups)]
            url = name if "file" in _protocols(fs) else fs.unstrip_protocol(name)
            yield url, data.schema.to_arrow_schema(), [(size.num_rows, size.total_byte_size) for size in sizes]


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def shard(
    rows: Sequence[int], rank: int, size: int, seed: int = 0, epoch: int = 0, shuffle: bool = True
) -> list[Piece]:
    """The rows that a rank reads in an epoch, as pieces of groups whose numbers of rows are given.

    The groups, permuted by (seed, epoch), are laid end to end as a circle, which is cut into `size` equal intervals. A
    group on a border is read by both ranks, each its rows. So all ranks have the same number of rows, and no row is
    read twice. Fewer than `size` rows are left over, and they are others in each epoch.

    Raises ValueError if there are fewer rows than ranks.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is outside of a world of {counted(size, 'rank')}")
    total = sum(rows)
    share = total // size
    if share == 0:
        raise ValueError(
            f"the data has {counted(total, 'row')}, fewer than the {counted(size, 'rank')}\n"
            f"hint: use at most {total} processes (num_proc), or more data"
        )
    return _interval(rows, (epoch * (total % size) + rank * share) % total, share, seed, epoch, shuffle)


def own_share(rows: Sequence[int], share: int, seed: int = 0, epoch: int = 0, shuffle: bool = True) -> list[Piece]:
    """As `shard`, for groups that one rank alone reads: `share` rows of them. What is left out differs by the epoch."""
    total = sum(rows)
    return _interval(rows, epoch * (total - share) % total, share, seed, epoch, shuffle)


def _interval(rows: Sequence[int], begin: int, length: int, seed: int, epoch: int, shuffle: bool) -> list[Piece]:
    """The pieces of an interval of the circle that the groups make."""
    total = sum(rows)
    order = np.random.default_rng((seed, epoch)).permutation(len(rows)) if shuffle else range(len(rows))
    pieces = []
    for low, high in ((begin, min(begin + length, total)), (0, max(begin + length - total, 0))):
        at = 0
        for group in map(int, order):
            start, stop = max(low - at, 0), min(high - at, rows[group])
            if start < stop:
                pieces.append(Piece(group, start, stop))
            at += rows[group]
    return pieces


def read(
    data: Plan,
    pieces: Sequence[Piece],
    columns: Sequence[str] | None = None,
    threads: int = 2,
    tables: Callable[[Group, Callable[[], Any]], Any] | None = None,
) -> Generator[Columns, None, None]:
    """Yields the pieces in order, each as NumPy arrays by column; the first dimension is the row.

    `threads` decode ahead, and at most two groups are in memory. `tables` may answer for a group in place of the file:
    it gets the group and a function that decodes it. Raises ValueError that names the column, the file and the row for
    a null, for lists of unequal length, and for a type that NumPy does not have.
    Closing the generator ends the threads.
    """
    source = _Source(data, tuple(data.types if columns is None else columns), tables)
    shapes: dict[str, tuple[int, ...]] = {}
    pending: collections.deque[Future[Columns]] = collections.deque()
    left = iter(pieces)
    pool = ThreadPoolExecutor(max(1, min(threads, ALIVE_GROUPS)), thread_name_prefix="horovod-data")
    try:
        for piece in pieces:
            for ahead in itertools.islice(left, ALIVE_GROUPS - len(pending)):
                pending.append(pool.submit(source.decoded, ahead))
            found = pending.popleft().result()
            for name, values in found.items():
                if values.shape[1:] != shapes.setdefault(name, values.shape[1:]):
                    group = data.groups[piece.group]
                    raise ValueError(
                        f"column {quoted(name)} has {_sizes(values.shape[1:])} in "
                        f"{on_one_line(data.file_of(group))}, row "
                        f"{group.first_row + piece.start}, and {_sizes(shapes[name])} before\n"
                        "hint: all values of a column need one shape"
                    )
            yield found
            del found, values
    finally:
        for future in pending:
            future.cancel()
        pool.shutdown(wait=True)


def _sizes(shape: tuple[int, ...]) -> str:
    return "values of " + " x ".join(map(str, shape)) if shape else "single values"


class _Source:
    """Decodes pieces. Used by several threads: each opens files of its own."""

    def __init__(self, data: Plan, columns: tuple[str, ...], tables: Any) -> None:
        self._plan = data
        self._columns = columns
        self._tables = tables
        self._footers: dict[str, Any] = {}
        for name in columns:
            if name not in data.types:
                known = ", ".join(map(quoted, sorted(data.types)))
                raise ValueError(f"the data has no column {quoted(name)}\nhint: it has {known}")

    def decoded(self, piece: Piece) -> Columns:
        group = self._plan.groups[piece.group]
        table = self._tables(group, lambda: self._table(group)) if self._tables else self._table(group)
        rows = table.slice(piece.start, piece.stop - piece.start)
        first_row = group.first_row + piece.start
        file = self._plan.file_of(group)
        found = {name: to_numpy(rows.column(name), name, file, first_row) for name in self._columns}
        if len(rows) < group.rows:  # no view, which would keep the whole group
            return {name: values.copy() for name, values in found.items()}
        return found

    def _table(self, group: Group) -> Any:
        if self._plan.share is not None:
            return _mapped(group, self._columns)
        from pyarrow import parquet

        fs, inside = filesystem(group.file, self._plan.storage_options)
        try:
            raw = fs.open(inside, "rb")
        except (FileNotFoundError, PermissionError) as error:
            raise type(error)(
                f"{on_one_line(group.file)} cannot be read: {error.strerror or error}\n"
                "hint: the path must be there on the machine of each rank, and its user must be allowed to read it"
            ) from None
        with raw:
            # Without threads of Arrow's own: there are as many decoders as the user asked for.
            file = parquet.ParquetFile(raw, metadata=self._footers.get(group.file))
            self._footers.setdefault(group.file, file.metadata)
            return file.read_row_group(group.number, columns=list(self._columns), use_threads=False)


def _mapped(group: Group, columns: Sequence[str]) -> Any:
    """A record batch of an Arrow file, as a table that views the file."""
    import pyarrow as pa

    with pa.memory_map(group.file) as file:
        batch = pa.ipc.open_file(file).get_batch(group.number)
    return pa.Table.from_batches([batch]).select(list(columns))


def to_numpy(column: Any, name: str, file: str, first_row: int) -> np.ndarray[Any, Any]:
    """An Arrow column as an array, of one more dimension for each level of lists. Views Arrow's memory if it can."""
    import pyarrow as pa

    where = _Where(name, file, first_row)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # of no chunks, or of more than one array can hold
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return _dense(array, where, 1)


class _Where(NamedTuple):
    column: str
    file: str
    first_row: int

    def error(self, row: int, fact: str, act: str) -> ValueError:
        return ValueError(
            f"column {quoted(self.column)}, {on_one_line(self.file)}, row {self.first_row + row}: {fact}\nhint: {act}"
        )


def _dense(array: Any, where: _Where, per_row: int) -> np.ndarray[Any, Any]:
    """The values; `per_row` of them belong to one row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.null_count:
        row = pc.index(array.is_null(), True).as_py() // per_row
        raise where.error(row, "the value is null", "fill or drop nulls before (DataFrame.fillna, dropna)")
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _dense(array.dictionary_decode(), where, per_row)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if len(array) == 0:
            return np.empty((0, 0))
        if pa.types.is_fixed_size_list(kind):
            length = kind.list_size
        else:
            lengths = np.diff(array.offsets.to_numpy())
            length = int(lengths[0])
            if (lengths != length).any():
                odd = int(np.argmax(lengths != length))
                raise where.error(
                    odd // per_row,
                    f"a list of {lengths[odd]} values, where the rows before have {length}",
                    "pad or cut the lists to one length",
                )
        inner = _dense(array.flatten(), where, per_row * max(length, 1))
        return inner.reshape(len(array), length, *inner.shape[1:])
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise where.error(0, f"the type is {kind}", "use numbers, bool, text, times, or lists of them")
    values: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
    return values
