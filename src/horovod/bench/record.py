# SPDX-License-Identifier: Apache-2.0
"""A benchmark's record: what was measured, on what, from which commit, by which command, with the raw data."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from horovod import __version__

__all__ = ["write_record"]


def write_record(path: str, measured: dict[str, Any]) -> None:
    """Writes one JSON file. Raises OSError where it cannot."""
    record = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": ["python", "-m", "horovod.bench", *sys.argv[1:]],
        "version": __version__,
        "commit": _commit(),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.release()}",
            "load_average": os.getloadavg(),
        },
        "python": platform.python_version(),
        **measured,
    }
    Path(path).write_text(json.dumps(record, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """The commit of the source tree this package lies in, with "+" where files differ; None for an installed one."""
    here = Path(__file__).resolve().parent
    try:
        result = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty=+"], capture_output=True, text=True
        )
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
