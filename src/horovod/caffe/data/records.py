# SPDX-License-Identifier: Apache-2.0
"""Datum records, and the LMDB folders that hold them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from horovod.caffe.data.transform import Image, decode
from horovod.caffe.errors import CaffeError
from horovod.caffe.schema import message
from horovod.core.wording import on_one_line

__all__ = ["BATCH", "Lmdb", "datum_of", "image_of", "write_lmdb"]

_MAP_SIZE = 1 << 40  # an upper bound, as Caffe's: address space, not memory
BATCH = 1000  # records a transaction


def _lmdb() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise CaffeError(f"lmdb is not installed ({error})\nhint: pip install 'hvd[caffe]'") from error
    return lmdb


# A process may open an LMDB only once, and two layers may read the same: environments, each with its readers.
_open: dict[str, tuple[Any, int]] = {}
_lock = threading.Lock()


def _opened(lmdb: Any, place: str) -> Any:
    with _lock:
        environment, readers = _open.get(place, (None, 0))
        if environment is None:
            environment = lmdb.open(place, readonly=True, lock=False, readahead=True, max_readers=512)
        _open[place] = (environment, readers + 1)
        return environment


class Lmdb:
    """An LMDB folder, read by number in the order of its keys."""

    def __init__(self, path: str) -> None:
        lmdb = _lmdb()
        if not Path(path).is_dir():
            raise CaffeError(f"{on_one_line(path)}: there is no such folder")
        if not (Path(path) / "data.mdb").is_file():
            hint = "\nhint: it is a LevelDB: set backend: LEVELDB" if (Path(path) / "CURRENT").is_file() else ""
            raise CaffeError(f"{on_one_line(path)}: is not an LMDB: it has no file data.mdb{hint}")
        self.path, self._place = path, os.path.realpath(path)
        try:
            self._environment = _opened(lmdb, self._place)
            with self._environment.begin() as transaction:
                self.keys: list[bytes] = list(transaction.cursor().iternext(values=False))
        except lmdb.Error as error:
            raise CaffeError(f"{on_one_line(path)}: cannot be read as an LMDB: {error}") from error
        if not self.keys:
            self.close()
            raise CaffeError(f"{on_one_line(path)}: the LMDB has no records")

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        """The Datum with this number."""
        with self._environment.begin() as transaction:
            return datum_of(transaction.get(self.keys[index]), self.path, self.keys[index])

    def __iter__(self) -> Iterator[Any]:
        """All Datum messages, once."""
        return map(self.__getitem__, range(len(self)))

    def close(self) -> None:
        """Closes this reader, and the files with the last one. Call it once."""
        with _lock:
            environment, readers = _open[self._place]
            _open[self._place] = (environment, readers - 1)
            if readers == 1:
                environment.close()
                del _open[self._place]


def datum_of(value: bytes, path: str, key: bytes) -> Any:
    """The Datum that a record of a database holds. Raises CaffeError."""
    datum = message("Datum")()
    try:
        datum.ParseFromString(value)
    except DecodeError as error:
        raise CaffeError(f"{on_one_line(path)}: record {key!r} is not a Datum: {error}") from error
    return datum


def image_of(datum: Any, is_color: bool | None = None, name: str = "record") -> Image:
    """A Datum's image as (channels, height, width), of bytes or floats."""
    if datum.encoded:
        return decode(datum.data, is_color, name)
    shape = (datum.channels, datum.height, datum.width)
    values = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    if values.size != int(np.prod(shape)):
        raise CaffeError(f"{on_one_line(name)}: a Datum of shape {list(shape)} has {values.size} values")
    return values.reshape(shape)


def write_lmdb(path: str, records: Iterable[tuple[bytes, Any]]) -> int:
    """Makes a new LMDB of keys and Datum messages; returns how many. Raises OSError if it cannot be written."""
    lmdb, count = _lmdb(), 0
    try:
        with lmdb.open(path, map_size=_MAP_SIZE, sync=False) as environment:
            transaction = environment.begin(write=True)
            for key, datum in records:
                transaction.put(key, datum.SerializeToString(), append=False)
                count += 1
                if count % BATCH == 0:
                    transaction.commit()
                    transaction = environment.begin(write=True)
            transaction.commit()
            environment.sync(True)
    except lmdb.Error as error:
        raise OSError(str(error)) from error
    return count
