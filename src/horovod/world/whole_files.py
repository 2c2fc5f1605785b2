# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, and errors of the system that name the file. Imports nothing of ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["named", "write_whole"]


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
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    is_file = os.path.isfile(target) or not os.path.exists(target)
    # The end of a name means something to some readers: node exporter reads *.prom.
    new = os.path.join(folder, f".{name}.{os.getpid()}") if is_file else target
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
