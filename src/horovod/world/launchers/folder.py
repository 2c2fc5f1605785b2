# SPDX-License-Identifier: Apache-2.0
"""Rank 0's offer as a file in a folder that all hosts of a job share.

The file is named after the job. It has the job's secret in it, so it is this user's alone: a folder or a file that
others could have changed, or a file that they could read, is refused. A file of a job that has ended may still be
there. A rank that reads it finds no process at its addresses, and reads again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from pathlib import Path

from horovod.core.exceptions import StartError
from horovod.world.launchers.offer import LONGEST_BYTES, Offer

__all__ = ["OfferFile"]


class OfferFile:
    """The file of the job `key` in `folder`, which is made if it does not exist. Raises StartError that names it."""

    def __init__(self, folder: Path, key: str) -> None:
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", key)[:80]
        self.path = folder / f"job-{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError as error:
            raise StartError(
                f"the folder {folder}, in which the ranks are to find each other, cannot be used: {error.strerror}\n"
                "hint: HOROVOD_RENDEZVOUS_DIRECTORY names another folder, which all hosts must share",
                "start-unfound",
            ) from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise StartError(
                f"{folder}, in which the ranks are to find each other, is not a folder that only its owner, this user, "
                f"can write in (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o})\n"
                f"hint: chmod 700 {folder}, or set HOROVOD_RENDEZVOUS_DIRECTORY to a folder of this user's",
                "start-secret",
            )

    def write(self, offer: Offer) -> None:
        """Replaces the file of an earlier job of this name. A reader gets all of it or none."""
        fresh = self.path.with_name(f".{os.urandom(8).hex()}")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(offer.packed())
                file.flush()
                os.fsync(descriptor)  # a network's file system then has it, too
            os.replace(fresh, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise StartError(
                f"the file {self.path}, by which the ranks are to find rank 0, cannot be written: {error.strerror}\n"
                "hint: HOROVOD_RENDEZVOUS_DIRECTORY names another folder, which all hosts must share",
                "start-unfound",
            ) from error

    def read(self) -> Offer | None:
        """The offer in the file; None if there is none. Raises StartError if the file is not private to this user."""
        try:
            os.listdir(self.path.parent)  # a network's file system may remember that there was no such file
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise StartError(
                    f"{self.path}, the file with rank 0's address, is not private to this user (owner "
                    f"{status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o})\n"
                    "hint: remove it if you did not create it",
                    "start-secret",
                )
            return Offer.parse(file.read(LONGEST_BYTES))

    def remove(self, offer: Offer) -> None:
        """Removes the file if it is still that of this offer."""
        with contextlib.suppress(OSError, StartError):  # it is gone, or another job's, whose business it is
            if self.read() == offer:
                self.path.unlink()
