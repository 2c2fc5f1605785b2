# SPDX-License-Identifier: Apache-2.0
"""The job's folder on this host, which is removed with the job: for multiprocessing, and for a word to horovodrun.

Makes multiprocessing put its temporary files there. A rank that is killed leaves the sockets of its DataLoader workers
behind, in folders `pymp-*`. Only that is moved: TMPDIR, where scripts keep what they want to find again, stays the
user's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from horovod.core.settings import job_directory

__all__ = ["has_no_init", "say_no_init", "share_job_directory"]

_NO_INIT = "no-init"


def say_no_init() -> None:
    """This process ends, and has not called init."""
    with contextlib.suppress(OSError):
        if directory := job_directory():
            Path(directory, _NO_INIT).touch()


def has_no_init(directory: str) -> bool:
    """Whether a process that has ended has said so."""
    return Path(directory, _NO_INIT).exists()


def share_job_directory() -> None:
    """At import, since workers may be started before init. Does nothing in a process that no launcher started."""
    directory = job_directory()
    if directory and os.path.isdir(directory):
        from multiprocessing import process

        # What multiprocessing itself sets at the first need; workers inherit it. There is no public way.
        process.current_process()._config.setdefault("tempdir", directory)  # type: ignore[attr-defined]
