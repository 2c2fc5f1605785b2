# SPDX-License-Identifier: Apache-2.0
"""Writes files: whole or not at all, or in place. Errors of the system name the file."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO

from horovod.world.files.places import Path, Place, about, place_of

__all__ = ["check_writable", "fresh_file", "named", "open_in_place", "replacement", "write_whole"]


@contextlib.contextmanager
def named(what: Path) -> Iterator[None]:
    """OSErrors of the block name this file, if they name none: those of a write do not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(what)) from error


def write_whole(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Writes a file; text as UTF-8. Readers see the old file or the new one, and an error leaves the old one or none.

    A file that is replaced keeps its mode, unless the new one is private: only this user can read it. A device or a
    pipe is written as it is. Raises OSError, which names the file.
    """
    data = content.encode() if isinstance(content, str) else content
    with place_of(path) as place:
        if not place.is_file:
            with open(place.open(os.O_WRONLY | os.O_TRUNC), "wb") as file:
                file.write(data)
            return
        like, mode = (None, 0o600) if private else (place.status, 0o666)
        with fresh_file(place.folder, place.name, like, mode) as new:
            new.write(data)


@contextlib.contextmanager
def fresh_file(folder: int, name: str, like: os.stat_result | None = None, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file, which gets this name in an open folder at the end of the block. An error leaves nothing of it.

    Its temporary name does not end as `name` does: node exporter, for example, reads every file that ends in `.prom`.
    """
    fresh = _unused()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, mode, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            _make_like(descriptor, like)
            yield file
            if mode == 0o600:
                file.flush()
                os.fsync(descriptor)  # other hosts wait for such files; a network's file system then has it, too
        os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh, dir_fd=folder)
        raise


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[str]:
    """A path for a library to write a file or folder at, which takes the place of `path` at the end of the block.

    It is in a new folder beside that place, which only this user can open. Raises OSError, which names `path`.
    """
    given = os.fspath(path)
    with place_of(path) as place:
        folder = _unused()
        with about(given):
            os.mkdir(folder, 0o700, dir_fd=place.folder)
        beside = f"/proc/self/fd/{place.folder}/{folder}"
        inner = os.path.join(beside, place.name)
        try:
            yield inner
            with about(given):
                _take_place(place, inner)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _take_place(place: Place, inner: str) -> None:
    if not place.is_file and not stat.S_ISDIR(0 if place.status is None else place.status.st_mode):
        with open(inner, "rb") as made, open(place.open(os.O_WRONLY | os.O_TRUNC), "wb") as target:
            shutil.copyfileobj(made, target)
        return
    if os.path.isfile(inner):
        made_file = os.open(inner, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _make_like(made_file, place.status)
        finally:
            os.close(made_file)
    os.replace(inner, place.name, dst_dir_fd=place.folder)


def open_in_place(path: Path, flags: int) -> int:
    """A descriptor of a file that is written where it is; the `opener` of Python's open(). Raises OSError.

    `flags`: of os.open. The file is emptied only once it is known to be this user's.
    """
    with place_of(path) as place:
        opened = place.open(flags & ~os.O_TRUNC)
        if flags & os.O_TRUNC and stat.S_ISREG(os.fstat(opened).st_mode):
            os.ftruncate(opened, 0)
        return opened


def check_writable(path: Path, *, in_place: bool = False) -> None:
    """Raises OSError, which names the file, if it could not be written now. Leaves nothing behind.

    in_place: by open_in_place(), not by write_whole(). A pipe is not tried: its reader would take that for the end.
    """
    with place_of(path) as place:
        if place.is_file and (place.status is None or not in_place):
            probe = _unused()
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=place.folder))
            os.unlink(probe, dir_fd=place.folder)
        elif place.status is None or not stat.S_ISFIFO(place.status.st_mode):
            opened = place.open(os.O_WRONLY | os.O_APPEND)
            try:
                os.write(opened, b"")  # a full device refuses even that
            finally:
                os.close(opened)


def _unused() -> str:
    return f".horovod-{os.urandom(8).hex()}"


def _make_like(descriptor: int, before: os.stat_result | None) -> None:
    """Gives a new file the mode of the one that it replaces, and its owner as far as this user may."""
    if before is None or not stat.S_ISREG(before.st_mode):
        return
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, before.st_uid if os.geteuid() == 0 else -1, before.st_gid)
    if stat.S_IMODE(status.st_mode) != stat.S_IMODE(before.st_mode) & 0o777:
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode) & 0o777)
