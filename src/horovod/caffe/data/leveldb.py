# SPDX-License-Identifier: Apache-2.0
"""LevelDB folders of Datum records, read by plyvel or plyvel-next."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from horovod.caffe.data.records import BATCH, datum_of
from horovod.caffe.errors import CaffeError
from horovod.core.wording import on_one_line

__all__ = ["LevelDb", "write_leveldb"]


_MODULES = ("plyvel", "plyvel_next")  # the second is the same with wheels for later releases of Python


def _plyvel() -> Any:
    problems = []
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            problems.append(str(error))
    raise CaffeError(
        f"LevelDB is read by plyvel, which is not installed ({'; '.join(problems)})\n"
        "hint: pip install plyvel; from Python 3.13 on, pip install plyvel-next"
    )


def _link(path: Path, folder: str) -> None:
    """Puts links to the database's files into the folder.

    A process that opens a LevelDB locks it and writes new files into its folder, even if it only reads. All ranks of a
    host read the same database, so each of them opens a folder of its own. LevelDB never changes a file that is there.
    """
    for file in path.iterdir():
        if file.name != "LOCK" and not file.name.startswith("LOG"):
            os.symlink(file.resolve(), Path(folder, file.name))


class LevelDb:
    """A LevelDB folder, read forwards in the order of its keys. The folder stays as it is."""

    def __init__(self, path: str) -> None:
        if not Path(path).is_dir():
            raise CaffeError(f"{on_one_line(path)}: there is no such folder")
        if not (Path(path) / "CURRENT").is_file():
            is_lmdb = (Path(path) / "data.mdb").is_file()
            hint = "\nhint: it is an LMDB: set backend: LMDB (the default is LEVELDB)" if is_lmdb else ""
            raise CaffeError(f"{on_one_line(path)}: is not a LevelDB: it has no file CURRENT{hint}")
        plyvel = _plyvel()
        self.path, self._error = path, plyvel.Error
        self._folder = tempfile.TemporaryDirectory(prefix="caffe-leveldb-")
        try:
            _link(Path(path), self._folder.name)
            self._database = plyvel.DB(self._folder.name)
            self._cursor = iter(self._database.iterator(fill_cache=False))
            first = next(self._cursor, None)
        except (plyvel.Error, OSError) as error:
            self._folder.cleanup()
            raise CaffeError(f"{on_one_line(path)}: cannot be read as a LevelDB: {error}") from error
        if first is None:
            self.close()
            raise CaffeError(f"{on_one_line(path)}: the LevelDB has no records")
        self._place, self._now = 0, first

    def __getitem__(self, index: int) -> Any:
        """The Datum with this number, not less than in the call before. After the last one the first comes again."""
        while self._place < index:
            self._now, self._place = self._following(), self._place + 1
        return datum_of(self._now[1], self.path, self._now[0])

    def _following(self) -> Any:
        try:
            record = next(self._cursor, None)
            if record is None:
                self._cursor = iter(self._database.iterator(fill_cache=False))
                record = next(self._cursor)
        except self._error as error:
            raise CaffeError(f"{on_one_line(self.path)}: cannot be read as a LevelDB: {error}") from error
        return record

    def __iter__(self) -> Iterator[Any]:
        """All Datum messages, once."""
        for key, value in self._database.iterator(fill_cache=False):
            yield datum_of(value, self.path, key)

    def close(self) -> None:
        """Closes the files. Once."""
        self._database.close()
        self._folder.cleanup()


def write_leveldb(path: str, records: Iterable[tuple[bytes, Any]]) -> int:
    """Makes a new LevelDB of keys and Datum messages; returns how many. Raises OSError if it cannot be written."""
    plyvel, count = _plyvel(), 0
    try:
        database = plyvel.DB(path, create_if_missing=True, error_if_exists=True)
    except plyvel.Error as error:
        raise OSError(str(error)) from error
    try:
        batch = database.write_batch()
        for key, datum in records:
            batch.put(key, datum.SerializeToString())
            count += 1
            if count % BATCH == 0:
                batch.write()
                batch.clear()
        batch.write()
    except plyvel.Error as error:
        raise OSError(str(error)) from error
    finally:
        database.close()
    return count
