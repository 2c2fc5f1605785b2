# SPDX-License-Identifier: Apache-2.0
"""Parquet files as batches: order, dtypes, errors, shuffling, resuming, the cache, memory, threads and closing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.other_users import NOT_ROOT

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader, ParquetReader, plan, to_torch
from horovod.data.arrow_cache import ArrowCache

pa = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="not run: pyarrow is not installed")

ROWS = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, of eight groups together, whose sizes differ; Spark's marks beside them."""
    folder = tmp_path_factory.mktemp("data")
    ids = np.arange(ROWS)
    table = pa.table(
        {
            "id": ids,
            "label": pa.array(ids % 10, pa.int32()),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 4), pa.float32()), 4),
            "v": pa.array([[i, i + 1] for i in ids], pa.list_(pa.float64())),
            "grid": pa.array([[[i, 1, 2], [3, 4, 5]] for i in ids], pa.list_(pa.list_(pa.int16()))),
            "flag": ids % 2 == 0,
            "name": [f"n{i}" for i in ids],
        }
    )
    for number, (start, stop, size) in enumerate([(0, 300, 110), (300, 700, 150), (700, 1000, 200)]):
        pq.write_table(table.slice(start, stop - start), folder / f"part-{number}.parquet", row_group_size=size)
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    pq.write_table(table, folder / "_temporary" / "part-0.parquet")
    return folder


def ids_of(batches: Iterator[dict[str, Any]]) -> list[int]:
    return np.concatenate([batch["id"] for batch in batches]).tolist()


def test_batches_have_all_rows_in_order_and_their_dtypes(folder: Path) -> None:
    with ParquetReader(str(folder), batch_size=64, shuffle=False) as reader:
        assert len(reader) == 16 and reader.rows == ROWS and len(reader.plan.groups) == 8
        batches = list(reader)
    assert [len(batch["id"]) for batch in batches] == [64] * 15 + [40]
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    ids = np.arange(ROWS)
    assert {name: (values.dtype.str, values.shape[1:]) for name, values in joined.items()} == {
        "id": ("<i8", ()),
        "label": ("<i4", ()),
        "x": ("<f4", (4,)),
        "v": ("<f8", (2,)),
        "grid": ("<i2", (2, 3)),
        "flag": ("|b1", ()),
        "name": ("|O", ()),
    }
    assert (
        (joined["id"] == ids).all() and (joined["label"] == ids % 10).all() and (joined["flag"] == (ids % 2 == 0)).all()
    )
    assert (joined["x"] == ids[:, None]).all() and (joined["v"][:, 1] == ids + 1).all()
    assert (joined["grid"][:, 0, 0] == ids).all() and (joined["grid"][:, 1, 2] == 5).all()
    assert joined["name"][7] == "n7"
    for batch in batches:
        assert all(values.flags.writeable and values.flags.c_contiguous for values in batch.values())


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_share_the_rows_and_any_number_of_threads_gives_the_same_batches(folder: Path, shuffle: bool) -> None:
    data = plan(str(folder), columns=["id", "x"])
    read = []
    for rank, threads in itertools.product(range(3), (1, 4)):
        reader = ParquetReader(data, batch_size=50, rank=rank, size=3, shuffle=shuffle, threads=threads, seed=4)
        read.append([ids_of(iter(reader)) for _ in range(3)])
    assert read[0::2] == read[1::2]
    for epoch in range(3):
        rows = [row for epochs in read[0::2] for row in epochs[epoch]]
        assert len(rows) == len(set(rows)) == 999
    assert read[0][0] != read[0][1]
    assert (read[0][0] == sorted(read[0][0])) is not shuffle


def test_a_pool_is_permuted_and_no_larger_than_asked(folder: Path) -> None:
    reader = ParquetReader(str(folder), columns=["id"], buffer_rows=100)
    rows = ids_of(iter(reader))
    assert sorted(rows) == list(range(ROWS))
    assert all(abs(rows[at] - rows[0]) < 350 for at in range(80)), "a pool is one group, or two neighbours"
    assert sum(after == before + 1 for before, after in itertools.pairwise(rows)) < 100
    assert rows != ids_of(iter(reader))


def test_a_resumed_reader_goes_on_with_the_same_batches(folder: Path) -> None:
    def new() -> ParquetReader:
        return ParquetReader(str(folder), columns=["id"], batch_size=32, rank=1, size=2, buffer_rows=150, seed=2)

    whole = [ids_of(iter(reader)) for reader in [new()] for _ in range(3)]
    for stop in (0, 1, 5, 9, 15):
        first = new()
        assert ids_of(iter(first)) == whole[0]
        head = [batch["id"].tolist() for batch in itertools.islice(first, stop)]
        second = new()
        second.restore(first.position())
        assert second.position() == {"epoch": 1, "row": 32 * stop, "size": 2}
        assert sum(head, []) + ids_of(iter(second)) == whole[1]
        assert ids_of(iter(second)) == whole[2]
        first.close()
    exact = new()
    assert len(list(itertools.islice(exact, len(exact)))) == 16
    assert exact.position() == {"epoch": 1, "row": 0, "size": 2}, "an epoch ends with its last batch"
    other = ParquetReader(str(folder), columns=["id"], size=4)
    other.restore({"epoch": 3, "row": 400, "size": 2})
    assert other.position() == {"epoch": 3, "row": 200, "size": 4} and len(ids_of(iter(other))) == 50


def test_drop_last_and_endless(folder: Path) -> None:
    reader = ParquetReader(str(folder), columns=["id"], batch_size=300, drop_last=True)
    assert len(reader) == 3 and [len(batch["id"]) for batch in reader] == [300] * 3
    assert [len(batch["id"]) for batch in itertools.islice(reader.endless(), 7)] == [300] * 7
    assert reader.position()["epoch"] == 3
    reader.close()
    with pytest.raises(ValueError, match="not one full batch: each rank has 100 rows"):
        ParquetReader(str(folder), batch_size=101, size=10, drop_last=True).endless()


def written(folder: Path, name: str, values: Any, **others: Any) -> str:
    """Rows 0 to 3 in one file, the values in two groups of another."""
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({name: values, **others}), folder / "part-1.parquet", row_group_size=2)
    return str(folder)


@pytest.mark.parametrize(
    ("values", "row", "fact"),
    [
        (pa.array([1, 2, None, 4]), 2, "the value is null"),
        (pa.array([[1.0], [2.0], None, [3.0]]), 2, "the value is null"),
        (pa.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, None]]), 3, "the value is null"),
        (pa.array([[1, 2], [1, 2], [1, 2], [1]]), 3, "a list of 1 values, where the rows before have 2"),
        (pa.array([[[1, 2]], [[1, 2]], [[1, 2]], [[1, 2, 3]]]), 3, "a list of 3 values, where the rows before have 2"),
        (pa.array([{"a": 1}] * 4), 0, "the type is struct<a: int64>"),
    ],
    ids=["null", "null_list", "null_inside", "ragged", "ragged_inside", "struct"],
)
def test_an_error_names_the_column_the_file_and_the_row(tmp_path: Path, values: Any, row: int, fact: str) -> None:
    before = set(threading.enumerate())
    reader = ParquetReader(written(tmp_path, "wrong one", values), shuffle=False)
    with pytest.raises(ValueError) as raised:
        list(reader)
    first = str(raised.value).splitlines()[0]
    assert first == f"column `wrong one`, {tmp_path}/part-1.parquet, row {row}: {fact}"
    assert "\nhint: " in str(raised.value)
    assert set(threading.enumerate()) <= before


def test_groups_whose_lists_differ_in_length_are_an_error(tmp_path: Path) -> None:
    reader = ParquetReader(written(tmp_path, "x", pa.array([[1, 2], [1, 2], [1], [2]])), shuffle=False)
    with pytest.raises(
        ValueError, match=r"column `x` has values of 1 in .*part-1.parquet, row 2, and values of 2 before"
    ):
        list(reader)


def test_a_missing_column_another_type_and_no_files_are_errors(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"part-0.parquet has no column `z`\nhint: it has `flag`, `grid`, `id`"):
        plan(str(folder), columns=["id", "z"])
    with pytest.raises(ValueError, match="no column `z`"):
        list(ParquetReader(plan(str(folder)), columns=["z"]))
    path = written(tmp_path / "two", "x", pa.array([1, 2, 3]))
    pq.write_table(pa.table({"x": ["a"]}), Path(path) / "part-2.parquet")
    with pytest.raises(
        ValueError, match=r"column `x` is string in .*part-2.parquet, and int64 in .*part-1.parquet\nhint"
    ):
        plan(path)
    with pytest.raises(FileNotFoundError, match="there are no Parquet files in"):
        plan(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="3 rows, fewer than the 4 ranks\nhint: use at most 3 processes"):
        ParquetReader(str(Path(path) / "part-1.parquet"), size=4)
    with pytest.raises(ValueError, match="cache is 'ram': expected None, 'disk' or 'memory'"):
        ParquetReader(path, cache="ram")


def test_a_transform_changes_columns_but_not_the_number_of_rows(folder: Path) -> None:
    with ParquetReader(str(folder), columns=["id"], transform=lambda rows: {"twice": rows["id"] * 2}) as reader:
        assert sorted(np.concatenate([batch["twice"] for batch in reader])) == list(range(0, 2 * ROWS, 2))
    wrong = ParquetReader(str(folder), columns=["id"], transform=lambda rows: {"id": rows["id"][1:]})
    with pytest.raises(ValueError, match="the transformation made .* rows of .* in column `id`\nhint"):
        list(wrong)


def test_a_store_in_memory_is_read_through_fsspec(folder: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/a.parquet", (folder / "part-0.parquet").read_bytes())
    try:
        with ParquetReader("memory://bucket", columns=["id"], shuffle=False) as reader:
            assert reader.plan.groups[0].file == "memory:///bucket/a.parquet"
            assert ids_of(iter(reader)) == list(range(300))
    finally:
        memory.rm("/bucket", recursive=True)


def test_closing_ends_the_threads_in_the_middle_of_an_epoch(folder: Path) -> None:
    before = set(threading.enumerate())
    with ParquetReader(str(folder), columns=["id"], batch_size=8) as reader:
        next(iter(reader))
        assert not set(threading.enumerate()) <= before
    assert set(threading.enumerate()) <= before


def test_a_reader_is_closed_while_another_thread_reads(folder: Path) -> None:
    for _ in range(20):
        reader = ParquetReader(str(folder), columns=["id"], batch_size=8)
        read: list[int] = []
        began = threading.Event()

        def consume(batches: Any, read: list[int] = read, began: threading.Event = began) -> None:
            for batch in batches:
                read.append(len(batch["id"]))
                began.set()

        thread = threading.Thread(target=consume, args=(reader.endless(),))
        thread.start()
        assert began.wait(60)
        reader.close()
        thread.join(60)
        assert not thread.is_alive() and read
    with pytest.raises(ValueError, match="the reader is closed"):
        iter(reader)


def test_the_cache_is_written_once_mapped_later_and_removed_by_its_last_user(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"horovod-data-{os.getuid()}-of-a-job-that-was-killed"
    left.mkdir()
    (left / "x.arrow").touch()
    first = ParquetReader(str(folder), batch_size=64, rank=0, size=2, cache="disk", seed=1)
    second = ParquetReader(str(folder), batch_size=64, rank=1, size=2, cache="disk", seed=1)
    plain = ParquetReader(str(folder), batch_size=64, rank=0, size=2, seed=1)
    assert not left.exists()
    (cache,) = tmp_path.iterdir()
    for _ in range(2):
        expected = list(plain)
        for batch, other in zip(first, expected, strict=True):
            assert all((batch[name] == other[name]).all() for name in other)
        list(second)
    assert len(list(cache.glob("*.arrow"))) == 8 and not list(cache.glob("*.part"))
    monkeypatch.setattr(pq, "ParquetFile", None)  # the files are not opened any more
    assert len(list(first)) == len(expected)
    first.close()
    assert cache.exists()
    second.close()
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_caches_of_other_data_are_made_while_unused_ones_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may be gone between its making and its lock."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def make(name: str) -> None:
        for number in range(300):
            ArrowCache(f"{name}{number}").close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, "abcd"))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_gone_says_who_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, 2]}), path)
    with ParquetReader(str(path)) as reader:
        path.unlink()
        with pytest.raises(FileNotFoundError, match="a.parquet cannot be read: No such file.*\nhint: the path must be"):
            list(reader)


def test_a_cache_that_cannot_be_written_still_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reader = ParquetReader(written(tmp_path / "d", "x", [1, 2, 3, 4]), shuffle=False, cache="disk")
    for path in tmp_path.glob("horovod-data-*"):
        path.rmdir()
    assert list(reader)[0]["x"].tolist() == [1, 2, 3, 4]
    reader.close()
    cache = ArrowCache("a", in_memory=True)
    assert cache.folder.parent == Path("/dev/shm")
    cache.close()
    assert not cache.folder.exists()


@pytest.mark.skipif(NOT_ROOT, reason="not run: only root can make what another user has")
@pytest.mark.parametrize("taken", ["link", "folder"])
def test_another_users_rows_are_not_read_and_another_users_folder_stops_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = written(tmp_path / "d", "x", [1, 2, 3, 4])
    with ParquetReader(data, shuffle=False, cache="disk") as reader:
        list(reader)
        kept = {path.name: path.read_bytes() for path in reader._cache.folder.iterdir()}
        usual = reader._cache.folder
    theirs = usual if taken == "folder" else tmp_path / "theirs"
    theirs.mkdir(0o700)
    rows = pa.table({"x": [666, 666, 666, 666]})
    for name in kept:
        with pa.OSFile(str(theirs / name), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
    if taken == "link":
        usual.symlink_to(theirs)
    for path in (theirs, usual, *theirs.iterdir()):
        os.lchown(path, 64321, 64321)
    for _ in range(2):
        with ParquetReader(data, shuffle=False, cache="disk") as reader:
            for _ in range(2):
                assert [batch["x"].tolist() for batch in reader] == [[1, 2, 3, 4]]
            assert len(list(reader._cache.folder.iterdir())) == 2 and reader._cache.folder != usual
    assert len(list(theirs.iterdir())) == 2


def test_a_cache_without_a_folder_says_so_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with ParquetReader(written(tmp_path / "d", "x", [1, 2, 3, 4]), shuffle=False, cache="disk") as reader:
        assert list(reader)[0]["x"].tolist() == [1, 2, 3, 4]
    assert "warning: the data is not cached: " in caplog.text and "No such file" in caplog.text


BOUND = """
import resource, sys
from pathlib import Path
from horovod.data import ParquetReader
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
small, big = (ParquetReader(path, batch_size=512, buffer_rows=20_000) for path in sys.argv[1:])
list(small)  # loads what a reader imports
before = peak()
assert sum(len(batch["id"]) for _ in range(2) for batch in big) == 600_000
print(peak() - before)
"""


def test_memory_is_bounded_by_the_buffer_and_two_groups(tmp_path: Path) -> None:
    """300,000 rows of 520 bytes in 30 groups, of which a pool has two."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.float32(), 128))])
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.random.default_rng(0).random(10_000 * 128, np.float32)), 128)
    group = pa.table([pa.array(np.arange(10_000)), x], schema=schema)
    for name, groups in (("small", 1), ("big", 30)):
        with pq.ParquetWriter(tmp_path / name, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(groups):
                writer.write_table(group)
    done = subprocess.run(
        [sys.executable, "-c", BOUND, str(tmp_path / "small"), str(tmp_path / "big")],
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    group_mb = group.nbytes / 2**20
    assert int(done.stdout) < 2.5 * 2 * group_mb + 2 * group_mb + 30, f"{done.stdout} of {30 * group_mb:.0f} MB"


class Counting(BaseDataLoader):
    def __init__(self, stop: int = 3, fails: bool = False) -> None:
        self.stop, self.fails, self.epochs = stop, fails, 0

    def __len__(self) -> int:
        return self.stop

    def _iterate(self) -> Iterator[int]:
        self.epochs += 1
        yield from range(self.stop)
        if self.fails:
            raise OSError("the disk is gone")

    def _process_batch(self, batch: int) -> int:
        return batch * 10


class AsyncCounting(AsyncDataLoaderMixin, Counting):
    pass


def test_horovods_loader_classes() -> None:
    assert list(Counting()) == [0, 10, 20] and len(Counting()) == 3
    for size in (0, 1, 64):
        loader = AsyncCounting(size, stop=4)
        assert [list(loader) for _ in range(3)] == [[0, 10, 20, 30]] * 3
        loader.close_async_loader()
        for batches in (4, 2):  # an iteration that is left, at the last batch or before it, has no part in the next one
            assert list(itertools.islice(loader, batches)) == [0, 10, 20, 30][:batches]
            assert list(loader) == [0, 10, 20, 30]
        next(iter(loader))
        loader.close_async_loader()
        loader.close_async_loader()
        assert list(loader) == [0, 10, 20, 30]
        loader.close_async_loader()
    assert not [thread for thread in threading.enumerate() if thread.name == "horovod-data-loader"]
    failing = AsyncCounting(fails=True)
    with pytest.raises(OSError, match="the disk is gone"):
        list(failing)
    with pytest.raises(NotImplementedError, match="BaseDataLoader does not define _iterate"):
        next(iter(BaseDataLoader()))
    loud = AsyncCounting(async_loader_queue_size=2, debug_data_loader=True)
    next(iter(loud))
    loud.close_async_loader()


def test_batches_as_tensors(folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="not run: torch is not installed")
    reader = ParquetReader(str(folder), columns=["id", "x", "label"], shuffle=False)
    batch = next(to_torch(reader))
    assert batch["x"].dtype == torch.float32 and batch["label"].dtype == torch.int32
    assert batch["x"].shape == (32, 4) and batch["id"].tolist() == list(range(32))
    batch["x"].add_(1)
    reader.close()
    with pytest.raises(TypeError, match="cannot make a tensor of column `name`, which has the type object\nhint"):
        next(to_torch(ParquetReader(str(folder), columns=["name"])))


@pytest.mark.thorough  # an estimator's test uses it every day
def test_batches_as_a_tensorflow_dataset(folder: Path) -> None:
    pytest.importorskip("tensorflow", reason="not run: TensorFlow is not installed")
    from horovod.data import to_tensorflow

    reader = ParquetReader(str(folder), columns=["id", "x", "label"], batch_size=300, shuffle=False)
    data = to_tensorflow(reader, map_batch=lambda batch: (batch["x"], batch["label"]))
    for _ in range(2):
        batches = list(data)
        assert [len(labels) for _, labels in batches] == [300, 300, 300, 100]
        assert batches[1][0].shape == (300, 4) and batches[0][1].numpy()[:3].tolist() == [0, 1, 2]
