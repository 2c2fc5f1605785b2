# SPDX-License-Identifier: Apache-2.0
"""Jobs that are looked at by `horovodrun jobs`, `top` and `stacks` while they run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.cluster import Host
from support.patience import wait_until

# Rank 1 is late in a function of its own, until the test says that it has seen enough.
TRAIN = """
import os, time
from pathlib import Path
import numpy
import horovod.core as hvd
hvd.init()
def prepare():
    time.sleep(0.02 if hvd.rank() == 1 else 0.0)
os.write(1, b"ready %d\\n" % os.getpid())
enough = Path({enough!r})
while not hvd.allreduce(numpy.array(float(enough.exists())), name="enough"):
    prepare()
    hvd.allreduce(numpy.ones(1000), name="gradient")
"""


def script(folder: Path, mark: str) -> tuple[list[str], Path]:
    """A command that trains until the file that is returned exists. Its name tells it apart from other tests' jobs."""
    enough = folder / "enough"
    path = folder / f"{mark}_{os.getpid()}.py"
    path.write_text(TRAIN.format(enough=str(enough)))
    return [sys.executable, str(path)], enough


def look(*words: str, on: Host | None = None) -> str:
    """What horovodrun prints."""
    command = [sys.executable, "-m", "horovod.launcher", *words]
    command = command if on is None else on.command(*command)
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr


def id_of(command: str, on: Host | None = None) -> str:
    """The id of the job whose command has these words; other tests' jobs run on this host, too."""
    pattern = rf"^(\w+) .*{re.escape(command)}"
    return wait_until(lambda: re.search(pattern, look("jobs", on=on), re.MULTILINE), lambda: look("jobs", on=on))[1]


def shown_until(pattern: str, *words: str, on: Host | None = None) -> str:
    """What horovodrun prints, once it matches; blanks and line ends are one blank."""

    def matching() -> str:
        text = " ".join(look(*words, on=on).split())
        return text if re.search(pattern, text) else ""

    return wait_until(matching, lambda: look(*words, on=on))
