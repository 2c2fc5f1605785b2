# SPDX-License-Identifier: Apache-2.0
"""Makes multiprocessing put its temporary files into the job's folder, which is removed with the job.

A rank that is killed leaves the sockets of its DataLoader workers behind, in folders `pymp-*`. Only that is moved:
TMPDIR, where scripts keep what they want to find again, stays the user's.
"""

from __future__ import annotations

import os

from horovod.core.settings import job_directory

__all__ = ["share_job_directory"]


def share_job_directory() -> None:
    """At import, since workers may be started before init. Does nothing in a process that no launcher started."""
    directory = job_directory()
    if directory and os.path.isdir(directory):
        from multiprocessing import process

        # What multiprocessing itself sets at the first need; workers inherit it. There is no public way.
        process.current_process()._config.setdefault("tempdir", directory)  # type: ignore[attr-defined]
