# SPDX-License-Identifier: Apache-2.0
"""The job's secret: 32 random bytes that the launcher makes and every rank proves.

It is read from a file that its owner alone can open.
"""

from __future__ import annotations

import os
import re
import stat

from horovod.core.exceptions import StartError
from horovod.core.temporary_files import memory_file
from horovod.core.wording import on_one_line

__all__ = ["SECRET_BYTES", "SecretFile", "new_secret", "read_secret"]

SECRET_BYTES = 32
_NAME = "horovod-secret"


def new_secret() -> bytes:
    return os.urandom(SECRET_BYTES)


class SecretFile:
    """The secret in memory, readable at `path` by processes of this user for as long as this process keeps it open.

    Not on any disk, so nothing is left behind however the job ends. The path reaches the ranks through wrapper scripts
    that close descriptors. A rank in a PID or user namespace of its own cannot open it: it inherits `descriptor`.
    """

    def __init__(self, secret: bytes) -> None:
        self.descriptor = memory_file(_NAME)
        os.write(self.descriptor, secret)
        self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def close(self) -> None:
        os.close(self.descriptor)


def _opened(path: str) -> int:
    """A descriptor of the file. In other namespaces than the launcher's, the one that this process has inherited."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        inherited = re.fullmatch(r"/proc/\d+/fd/(\d+)", path)
        own = f"/proc/self/fd/{inherited[1]}" if inherited else ""
        # The number may be another file's by now.
        if inherited and os.path.islink(own) and _NAME in os.readlink(own):
            return os.dup(int(inherited[1]))
        raise


def read_secret(path: str) -> bytes:
    """Raises StartError if the file is missing, open to others, or too short to be a secret."""
    if not path:
        raise StartError(
            "HOROVOD_SECRET_FILE is not set, so this rank cannot prove that it belongs to the job\n"
            "hint: start the ranks with horovodrun, which sets it, and pass its environment on",
            "start-secret",
        )
    try:
        descriptor = _opened(path)
        try:
            mode = os.fstat(descriptor).st_mode
            secret = os.pread(descriptor, 4096, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StartError(
            f"the job's secret, HOROVOD_SECRET_FILE={on_one_line(path)}, cannot be read: {error.strerror}\n"
            "hint: the file lives as long as horovodrun does and belongs to the user who started it; in a container of "
            "its own, a rank must inherit the descriptor of that number",
            "start-secret",
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise StartError(
            f"the job's secret, HOROVOD_SECRET_FILE={on_one_line(path)}, is open to other users (mode "
            f"{stat.S_IMODE(mode):04o})\n"
            f"hint: chmod 600 {on_one_line(path)}",
            "start-secret",
        )
    if len(secret) < SECRET_BYTES:
        raise StartError(
            f"the job's secret, HOROVOD_SECRET_FILE={on_one_line(path)}, holds {len(secret)} bytes, expected "
            f"{SECRET_BYTES} or more",
            "start-secret",
        )
    return secret
