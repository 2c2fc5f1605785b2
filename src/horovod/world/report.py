# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a job's report (horovodrun --report): the timeline, the counters, and its host.

Every rank writes into the folder of its own host. A part that cannot be written is a warning: training goes on.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from pathlib import Path
from typing import Any

from horovod import __version__
from horovod.core import native
from horovod.core.wording import tell
from horovod.settings import Settings
from horovod.world.files.places import make_folder
from horovod.world.files.whole import write_whole
from horovod.world.machine import machine, packages

__all__ = ["begin", "end", "facts"]


def facts() -> dict[str, Any]:
    """Of this host and of the software in this process."""
    return {
        "host": platform.node(),
        "horovod": f"{__version__} (build {native.build_id()})",
        "python": f"{platform.python_version()} ({sys.executable})",
        "packages": packages(),
        "machine": machine(),
        "kernel": platform.version(),
        "libc": " ".join(platform.libc_ver()),
    }


def begin(settings: Settings) -> Settings:
    """Makes the folder on this host, and names the timeline in it, unless the script's settings name another one."""
    folder = Path(settings.report)
    host = settings.hostname or platform.node()
    try:
        make_folder(folder / "hosts")
        if not settings.local_rank:
            _write(folder / "hosts" / f"{host}.json", facts())
    except OSError as error:
        _warn(error)
        return settings
    timeline = settings.timeline or str(folder / f"timeline.{host}.json")
    return dataclasses.replace(settings, timeline=timeline)


def end(folder: str, rank: int, generation: int, statistics: dict[str, Any]) -> None:
    """Writes the counters of a generation that ends."""
    name = f"rank.{rank}.json" if generation <= 1 else f"rank.{rank}.{generation}.json"
    try:
        make_folder(Path(folder) / "statistics")
        _write(Path(folder) / "statistics" / name, statistics)
    except OSError as error:
        _warn(error)


def _write(path: Path, values: dict[str, Any]) -> None:
    write_whole(path, json.dumps(values, indent=1) + "\n")


def _warn(error: OSError) -> None:
    tell(f"horovod: warning: cannot write a part of the report: {error.filename}: {error.strerror}; training goes on")
