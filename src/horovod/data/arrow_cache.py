# SPDX-License-Identifier: Apache-2.0
"""Decoded row groups on the local disk: the first epoch writes them, later epochs map them.

All ranks of a host that give the same key share a folder: one file for each group, as Arrow IPC. A file gets its name
when it is whole. Each user holds a shared lock of the folder; the last one to close removes it. The folder of a job
that was killed is removed by the next cache on this host.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horovod.data.parquet import Group

__all__ = ["ArrowCache"]

_PREFIX = "horovod-data"


class ArrowCache:
    """A cache of row groups, for `read`. In memory (/dev/shm) if asked, else in the folder for temporary files."""

    def __init__(self, key: str, in_memory: bool = False) -> None:
        shm = Path("/dev/shm")
        base = shm if in_memory and shm.is_dir() else Path(tempfile.gettempdir())
        digest = hashlib.sha256(key.encode()).hexdigest()[:24]
        self.folder = base / f"{_PREFIX}-{os.getuid()}-{digest}"
        for other in base.glob(f"{_PREFIX}-{os.getuid()}-*"):
            if other != self.folder:
                _remove_if_unused(other)
        self._lock: int | None = _locked(self.folder)

    def __call__(self, group: Group, decode: Callable[[], Any]) -> Any:
        """The group's table: mapped if it is there, else decoded and written."""
        import pyarrow as pa

        name = hashlib.sha256(f"{group.file}:{group.number}".encode()).hexdigest()[:24]
        path = self.folder / f"{name}.arrow"
        if not path.exists():
            table = decode()
            part = self.folder / f"{name}.{os.getpid()}.part"
            try:
                with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
                os.replace(part, path)
            except OSError:  # the disk is full, or the folder was removed: the data is still at its source
                part.unlink(missing_ok=True)
            return table
        with pa.memory_map(str(path)) as file:
            return pa.ipc.open_file(file).read_all()

    def close(self) -> None:
        """Gives the cache up; removes the files if this was the last user."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _remove_if_unused(self.folder)


def _locked(folder: Path) -> int:
    """Makes a folder of this user alone, unless it is there; returns a descriptor that holds a shared lock of it."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
            if folder.stat().st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user\nhint: set TMPDIR to your own folder")
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.exists() and folder.stat().st_ino == os.fstat(lock).st_ino:
                return lock
            os.close(lock)


def _remove_if_unused(folder: Path) -> None:
    """Removes a folder that no process has locked."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
