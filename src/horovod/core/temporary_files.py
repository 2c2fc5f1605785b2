# SPDX-License-Identifier: Apache-2.0
"""Files that nothing is left of: in memory, or in the job's folder, which is removed with the job.

A rank that is killed leaves the sockets of its DataLoader workers behind, in folders `pymp-*`. Only these are moved to
the job's folder: TMPDIR, where scripts keep what they want to find again, stays the user's.
"""

from __future__ import annotations

import errno
import os
import tempfile

from horovod.core.settings import job_directory

__all__ = ["memory_file", "share_job_directory"]


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


def share_job_directory() -> None:
    """At import, since workers may be started before init. Does nothing in a process that no launcher started."""
    directory = job_directory()
    if directory and os.path.isdir(directory):
        from multiprocessing import process

        # What multiprocessing itself sets at the first need; workers inherit it. There is no public way.
        process.current_process()._config.setdefault("tempdir", directory)  # type: ignore[attr-defined]
