# SPDX-License-Identifier: Apache-2.0
"""Code that runs as another user of this machine, and a folder like /tmp, where all users can write."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["NOT_ROOT", "as_user", "folder_of_all", "links_protected"]

NOT_ROOT = os.geteuid() != 0
_PROTECTED = Path("/proc/sys/fs/protected_symlinks")


def as_user(user: int, act: Callable[[], object]) -> str:
    """Runs `act` in a forked child of this user id; what it printed, and the exception that it ended with.

    What it imports must be imported here already: the user may not be allowed to read where Python is installed.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
            logging.getLogger("horovod").addHandler(logging.StreamHandler(sys.stderr))
            os.chdir("/")
            if not NOT_ROOT:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            act()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


@contextlib.contextmanager
def folder_of_all() -> Iterator[Path]:
    """Not one of pytest's, which this user alone can enter."""
    folder = Path(tempfile.mkdtemp(prefix="hvd-test-", dir="/tmp"))
    try:
        folder.chmod(0o1777)
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def links_protected(value: str) -> Iterator[str]:
    """With fs.protected_symlinks, if it can be set; gives the value that it has."""
    with _PROTECTED.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two runs of the tests would restore each other's value
        before = file.read()
        try:
            _PROTECTED.write_text(value)
        except OSError:  # in a container
            yield before.strip()
            return
        try:
            yield value
        finally:
            _PROTECTED.write_text(before)
