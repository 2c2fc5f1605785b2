# SPDX-License-Identifier: Apache-2.0
"""The job's folder for temporary files on a host: its end, and how an agent says what goes wrong there."""

from __future__ import annotations

import contextlib
import os
import shutil

from horovod.core.wording import plain

__all__ = ["remove_directory", "say"]


def remove_directory(path: str) -> None:
    """Removes the job's folder. Prints what cannot be removed, and never raises: the job has ended already."""
    shutil.rmtree(path, onerror=lambda _, name, why: say(f"horovodrun: {name} could not be removed: {why[1]}"))


def say(text: str) -> None:
    """Straight to the launcher's stderr, whose reader may be gone as well."""
    with contextlib.suppress(OSError):
        os.write(2, plain(text).encode() + b"\n")
