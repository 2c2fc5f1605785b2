# SPDX-License-Identifier: Apache-2.0
"""Folders and files that only this user can change: with a job's secret, or with data that a job reads again.

A folder is used by the descriptor that was checked: its path may lead to another one a moment later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from horovod.world.files.places import Path, make_folder, owner, place_of
from horovod.world.files.whole import fresh_file

__all__ = [
    "NotPrivateError",
    "own_folder",
    "own_folders",
    "private_folder",
    "read_private",
    "remove_if_unused",
    "write_private",
]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotPrivateError(Exception):
    """Another user could read or change it. The text: whose it is, and its mode."""


@contextlib.contextmanager
def private_folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder, which is made if it is not there. Raises OSError, or NotPrivateError."""
    make_folder(path, 0o700)
    with place_of(path) as place:
        descriptor = os.open(place.name, _FOLDER, dir_fd=place.folder)
        try:
            status = os.fstat(descriptor)
            if not _is_own(status):
                raise NotPrivateError(_owner_and_mode(status))
            yield descriptor
        finally:
            os.close(descriptor)


def own_folder(base: Path, name: str) -> tuple[int, str]:
    """A descriptor of this user's folder of that name in `base`, and its path. It is made if it is not there.

    If another user has taken the name, or could write in the folder, that one is left alone: this user's folder then
    has letters of chance behind the name, and is found again by being this user's. The caller closes the descriptor.
    Raises OSError if no folder can be made.
    """
    with _opened(base) as at:
        for tried in _names(at, name):
            with contextlib.suppress(FileExistsError):
                os.mkdir(tried, 0o700, dir_fd=at)
            if (descriptor := _own(at, tried)) is not None:
                return descriptor, os.path.join(base, tried)
    raise OSError(errno.EEXIST, "no folder can be made that is this user's", os.path.join(base, name))


def own_folders(base: Path, prefix: str) -> Iterator[tuple[int, str]]:
    """Descriptors and paths of this user's folders in `base` whose names begin so. Each is closed before the next."""
    with contextlib.suppress(FileNotFoundError), _opened(base) as at:
        for name in sorted(os.listdir(at)):
            if name.startswith(prefix) and (descriptor := _own(at, name)) is not None:
                try:
                    yield descriptor, os.path.join(base, name)
                finally:
                    os.close(descriptor)


def remove_if_unused(folder: int, path: str) -> bool:
    """Removes one of own_folders(), and the files in it, unless a process holds a lock of it. False if it stays."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with contextlib.suppress(OSError):  # another process removes it, too
        for name in os.listdir(folder):
            os.unlink(name, dir_fd=folder)
        os.rmdir(path)
    return True


def write_private(folder: int, name: str, data: bytes) -> None:
    """Replaces a file of a private folder. A reader gets all of it or none. Raises OSError."""
    with fresh_file(folder, name, mode=0o600) as file:
        file.write(data)


def read_private(folder: int, name: str, most_bytes: int) -> bytes | None:
    """The file's content; None if there is no such file. Raises NotPrivateError if others could have read it."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise NotPrivateError(_owner_and_mode(status))
        return file.read(most_bytes)


@contextlib.contextmanager
def _opened(base: Path) -> Iterator[int]:
    with place_of(base) as place:
        at = os.open(place.name, _FOLDER, dir_fd=place.folder)
    try:
        yield at
    finally:
        os.close(at)


def _names(at: int, name: str) -> Iterator[str]:
    yield name
    yield from sorted(one for one in os.listdir(at) if one.startswith(f"{name}."))
    yield f"{name}.{os.urandom(8).hex()}"


def _own(at: int, name: str) -> int | None:
    """A descriptor of this user's folder; None if it is another user's, a link or a file, or is gone."""
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=at)
    except OSError:
        return None
    if _is_own(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)
    return None


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _owner_and_mode(status: os.stat_result) -> str:
    return f"owner {owner(status)}, mode {stat.S_IMODE(status.st_mode):04o}"
