# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, and errors of the system that name the file. Imports nothing of ours."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

__all__ = ["check_writable", "named", "write_whole"]


@contextlib.contextmanager
def named(what: str | os.PathLike[str]) -> Iterator[None]:
    """OSErrors of the block name this file, if they name none: those of a write do not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(what)) from error


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file of UTF-8. Readers see the old file or the new one, and an error leaves the old one or none.

    A device or a pipe is written as it is. Raises OSError, which names the file.
    """
    target, new = _places(path)
    is_file = new != target
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        if is_file:
            os.replace(new, target)
    except OSError as error:
        if is_file:
            with contextlib.suppress(OSError):
                os.unlink(new)
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises OSError, which names the file, if write_whole() could not write it now. Leaves nothing behind.

    A pipe is not tried: its reader would take that for the end.
    """
    target, new = _places(path)
    try:
        if new == target and stat.S_ISFIFO(os.stat(target).st_mode):
            return
        opened = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(opened, b"")  # a full device refuses even that
        finally:
            os.close(opened)
            if new != target:
                os.unlink(new)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _places(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The target of links, and where the text is written first; the same one of a device."""
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    if os.path.exists(target) and not os.path.isfile(target):
        return target, target
    # The end of a name means something to some readers: node exporter reads *.prom.
    return target, os.path.join(folder, f".{name}.{os.getpid()}")
