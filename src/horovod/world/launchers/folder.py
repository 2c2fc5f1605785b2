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
from pathlib import Path

from horovod.core.exceptions import StartError
from horovod.world.files.private import NotPrivateError, private_folder, read_private, write_private
from horovod.world.launchers.offer import LONGEST_BYTES, Offer

__all__ = ["OfferFile"]


class OfferFile:
    """The file of the job `key` in `folder`, which is made if it does not exist. Raises StartError that names it."""

    def __init__(self, folder: Path, key: str) -> None:
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", key)[:80]
        self.path = folder / f"job-{readable}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        try:
            with private_folder(folder):
                pass
        except OSError as error:
            raise StartError(
                f"the folder {folder}, in which the ranks are to find each other, cannot be used: {error.strerror}\n"
                "hint: HOROVOD_RENDEZVOUS_DIRECTORY names another folder, which all hosts must share",
                "start-unfound",
            ) from error
        except NotPrivateError as error:
            raise StartError(
                f"{folder}, in which the ranks are to find each other, is not a folder that only its owner, this user, "
                f"can write in ({error})\n"
                f"hint: chmod 700 {folder}, or set HOROVOD_RENDEZVOUS_DIRECTORY to a folder of this user's",
                "start-secret",
            ) from None

    def write(self, offer: Offer) -> None:
        """Replaces the file of an earlier job of this name. A reader gets all of it or none."""
        try:
            with private_folder(self.path.parent) as folder:
                write_private(folder, self.path.name, offer.packed())
        except (OSError, NotPrivateError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise StartError(
                f"the file {self.path}, by which the ranks are to find rank 0, cannot be written: {reason}\n"
                "hint: HOROVOD_RENDEZVOUS_DIRECTORY names another folder, which all hosts must share",
                "start-unfound",
            ) from error

    def read(self) -> Offer | None:
        """The offer in the file; None if there is none. Raises StartError if the file is not private to this user."""
        data = None
        try:
            with contextlib.suppress(OSError), private_folder(self.path.parent) as folder:
                os.listdir(folder)  # a network's file system may remember that there was no such file
                data = read_private(folder, self.path.name, LONGEST_BYTES)
        except NotPrivateError as error:
            raise StartError(
                f"{self.path}, the file with rank 0's address, is not private to this user ({error})\n"
                "hint: remove it if you did not create it",
                "start-secret",
            ) from None
        return None if data is None else Offer.parse(data)

    def remove(self, offer: Offer) -> None:
        """Removes the file if it is still that of this offer."""
        with contextlib.suppress(OSError, StartError):  # it is gone, or another job's, whose business it is
            if self.read() == offer:
                self.path.unlink()
