# SPDX-License-Identifier: Apache-2.0
"""Decoded row groups on the local disk: the first epoch writes them, later epochs map them.

All ranks of a host that give the same key share a folder: one file for each group, as Arrow IPC. A file gets its name
when it is whole. Each user holds a shared lock of the folder; the last one to close removes it. The folder of a job
that was killed is removed by the next cache on this host. What another user could have written is never read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horovod.data.parquet import Group
from horovod.world.files.private import own_folder, own_folders, remove_if_unused
from horovod.world.files.whole import fresh_file

__all__ = ["ArrowCache"]

_log = logging.getLogger("horovod")


class ArrowCache:
    """A cache of row groups, for `read`. In memory (/dev/shm) if asked, else in the folder for temporary files.

    If no folder can be made, it says so and keeps nothing. `folder`: its path; None if there is none.
    """

    def __init__(self, key: str, in_memory: bool = False) -> None:
        base = "/dev/shm" if in_memory and os.path.isdir("/dev/shm") else tempfile.gettempdir()
        digest = hashlib.sha256(key.encode()).hexdigest()[:24]
        prefix = f"horovod-data-{os.geteuid()}-"
        self._lock: int | None = None
        self.folder: Path | None = None
        try:
            for other, path in own_folders(base, prefix):
                if not os.path.basename(path).startswith(prefix + digest):
                    remove_if_unused(other, path)
            self._lock, self.folder = _locked(base, prefix + digest)
        except OSError as error:
            _log.warning("horovod: warning: the data is not cached: %s: %s", error.filename or base, error.strerror)

    def __call__(self, group: Group, decode: Callable[[], Any]) -> Any:
        """The group's table: mapped if it is there, else decoded and written."""
        import pyarrow as pa

        if self._lock is None:
            return decode()
        name = f"{hashlib.sha256(f'{group.file}:{group.number}'.encode()).hexdigest()[:24]}.arrow"
        try:
            kept = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._lock)
        except FileNotFoundError:
            table = decode()
            with (
                contextlib.suppress(OSError),  # the disk is full: the data is still at its source
                fresh_file(self._lock, name) as file,
                pa.ipc.new_file(file, table.schema) as writer,
            ):
                writer.write_table(table)
            return table
        try:
            with pa.memory_map(f"/proc/self/fd/{kept}") as file:
                return pa.ipc.open_file(file).read_all()
        finally:
            os.close(kept)

    def close(self) -> None:
        """Gives the cache up; removes the files if this was the last user."""
        if self._lock is not None and self.folder is not None:
            os.close(self._lock)
            self._lock = None
            for folder, path in own_folders(self.folder.parent, self.folder.name):
                remove_if_unused(folder, path)


def _locked(base: str, name: str) -> tuple[int, Path]:
    """A descriptor of this user's folder, which holds a shared lock of it, and its path. Raises OSError."""
    while True:
        folder, path = own_folder(base, name)
        fcntl.flock(folder, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
            if os.path.samestat(os.lstat(path), os.fstat(folder)):
                return folder, Path(path)
        os.close(folder)
