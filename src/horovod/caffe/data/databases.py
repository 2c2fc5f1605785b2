# SPDX-License-Identifier: Apache-2.0
"""The kinds of databases, as data layers and tools name them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from horovod.caffe.data.leveldb import LevelDb, write_leveldb
from horovod.caffe.data.records import Lmdb, write_lmdb
from horovod.caffe.errors import CaffeError, nearest
from horovod.caffe.files import replacing
from horovod.caffe.flags import Flags
from horovod.core.wording import on_one_line

__all__ = ["Database", "backend_flag", "open_database", "write_database"]

Database = Lmdb | LevelDb
_READERS: dict[str, type[Database]] = {"lmdb": Lmdb, "leveldb": LevelDb}
_WRITERS = {"lmdb": write_lmdb, "leveldb": write_leveldb}


def backend_flag(parser: Flags) -> None:
    """Declares a tool's flag for the kind of its database."""
    parser.flag("backend", "lmdb", "the kind of database: lmdb or leveldb")


def open_database(backend: str, path: str) -> Database:
    """Opens the database. Raises CaffeError."""
    _check(backend)
    return _READERS[backend](path)


def write_database(backend: str, path: str, records: Iterable[tuple[bytes, Any]]) -> int:
    """Makes a new database of keys and Datum messages; returns how many. Raises CaffeError.

    The folder appears when it is complete.
    """
    _check(backend)
    if Path(path).exists():
        raise CaffeError(f"{on_one_line(path)}: exists already")
    with replacing(path) as partial:
        return _WRITERS[backend](partial, records)


def _check(backend: str) -> None:
    if backend not in _READERS:
        raise CaffeError(f"--backend={backend}: expected {' or '.join(_READERS)}{nearest(backend, _READERS)}")
