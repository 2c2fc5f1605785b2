# SPDX-License-Identifier: Apache-2.0
"""Files that hold a job's secret: only this user can read and write them, and only this user the folder they are in."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

__all__ = ["NotPrivateError", "private_folder", "read_private", "write_private"]


class NotPrivateError(Exception):
    """Another user could read or change it. The text: whose it is, and its mode."""


def private_folder(folder: Path) -> None:
    """Makes the folder if it does not exist. Raises OSError, or NotPrivateError if others could write in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise NotPrivateError(_owner_and_mode(status))


def write_private(path: Path, data: bytes) -> None:
    """Replaces the file. A reader gets all of it or none. Raises OSError."""
    fresh = path.with_name(f".{os.urandom(8).hex()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)  # a network's file system then has it, too
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise


def read_private(path: Path, most_bytes: int) -> bytes | None:
    """The file's content; None if there is no such file. Raises NotPrivateError if others could have read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise NotPrivateError(_owner_and_mode(status))
        return file.read(most_bytes)


def _owner_and_mode(status: os.stat_result) -> str:
    return f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
