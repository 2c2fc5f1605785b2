# SPDX-License-Identifier: Apache-2.0
"""Files that leave nothing behind: in memory, or in the job's folder on this host, which is removed with the job.

That folder is for multiprocessing, and for a word to horovodrun. A rank that is killed leaves the sockets of its
DataLoader workers behind, in folders `pymp-*`. Only these are moved to the job's folder: TMPDIR, where scripts keep
files that they want to find again, stays the user's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from horovod.settings import job_directory

__all__ = ["has_no_init", "memory_file", "say_no_init", "share_job_directory"]

_NO_INIT = "no-init"


def memory_file(name: str) -> int:
    """The descriptor of an empty file without a name, which this user alone can open. Raises OSError.

    In memory; a container may refuse that call, then in /dev/shm or in the folder for temporary files.
    """
    try:
        descriptor = os.memfd_create(name)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL):
            raise  # for want of descriptors or memory, say
        refused = error
        for folder in ("/dev/shm", tempfile.gettempdir()):
            try:
                descriptor, path = tempfile.mkstemp(prefix=f"{name}-", dir=folder)
            except OSError:
                continue
            os.unlink(path)
            break
        else:
            raise OSError(
                refused.errno,
                f"no file can be made in memory (memfd_create: {refused.strerror}), in /dev/shm or in TMPDIR\n"
                "hint: let the container's seccomp profile allow memfd_create, or mount /dev/shm",
            ) from None
    os.fchmod(descriptor, 0o600)
    return descriptor


def say_no_init() -> None:
    """This process ends, and has not called init."""
    with contextlib.suppress(OSError):
        if directory := job_directory():
            Path(directory, _NO_INIT).touch()


def has_no_init(directory: str) -> bool:
    """True if a process of the job has called say_no_init."""
    return Path(directory, _NO_INIT).exists()


def share_job_directory() -> None:
    """At import, since workers may be started before init. Does nothing in a process that no launcher started."""
    directory = job_directory()
    if directory and os.path.isdir(directory):
        from multiprocessing import process

        # multiprocessing itself sets this when it first needs it; workers inherit it. There is no public way.
        process.current_process()._config.setdefault("tempdir", directory)  # type: ignore[attr-defined]
