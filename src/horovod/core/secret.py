# SPDX-License-Identifier: Apache-2.0
"""The job's secret: 32 random bytes that the launcher makes and every rank proves.

It is read from a file that its owner alone can open.
"""

from __future__ import annotations

import os
import stat

from horovod.core.exceptions import StartError

__all__ = ["SECRET_BYTES", "SecretFile", "new_secret", "read_secret"]

SECRET_BYTES = 32


def new_secret() -> bytes:
    return os.urandom(SECRET_BYTES)


class SecretFile:
    """The secret in memory, readable at `path` by processes of this user for as long as this process keeps it open.

    Not on any disk, so nothing is left behind however the job ends; and unlike an inherited descriptor it still reaches
    the ranks through wrapper scripts that close descriptors.
    """

    def __init__(self, secret: bytes) -> None:
        self._descriptor = os.memfd_create("horovod-secret")
        os.fchmod(self._descriptor, 0o600)
        os.write(self._descriptor, secret)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def close(self) -> None:
        os.close(self._descriptor)


def read_secret(path: str) -> bytes:
    """Raises StartError if the file is missing, open to others, or too short to be a secret."""
    if not path:
        raise StartError(
            "HOROVOD_SECRET_FILE is not set, so this rank cannot prove that it belongs to the job\n"
            "hint: start the ranks with horovodrun, which sets it, and pass its environment on",
            "start-secret",
        )
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(4096)
    except OSError as error:
        raise StartError(
            f"the job's secret, HOROVOD_SECRET_FILE={path}, cannot be read: {error.strerror}\n"
            "hint: the file lives as long as horovodrun does and belongs to the user who started it",
            "start-secret",
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise StartError(
            f"the job's secret, HOROVOD_SECRET_FILE={path}, is open to other users (mode {stat.S_IMODE(mode):04o})\n"
            f"hint: chmod 600 {path}",
            "start-secret",
        )
    if len(secret) < SECRET_BYTES:
        raise StartError(
            f"the job's secret, HOROVOD_SECRET_FILE={path}, holds {len(secret)} bytes, expected {SECRET_BYTES} or more",
            "start-secret",
        )
    return secret
