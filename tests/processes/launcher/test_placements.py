# SPDX-License-Identifier: Apache-2.0
"""A new way to start ranks is one new file and one row of the registry, and nothing else."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from support.jobs import python, run_job

import horovod

PLACEMENT = '''
from horovod.launcher.placement.base import AGENT_COMMAND
from horovod.launcher.placement.local import LocalPlacement
import subprocess


class NothingPlacement(LocalPlacement):
    """Does nothing but start the agent by way of a shell, under a name that no other placement knows."""

    name = "nothing"

    def reaches(self, host, options):
        return host == "nowhere"

    def start_agent(self, host, environment, options):
        command = ["sh", "-c", 'exec "$@"', "sh", *AGENT_COMMAND]
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
'''
ROWS = "PLACEMENTS: tuple[Placement, ...] = (\n"


def test_a_placement_is_one_file_and_one_row(tmp_path: Path) -> None:
    package = tmp_path / "with-another-placement" / "horovod"
    shutil.copytree(Path(horovod.__file__).parent, package)
    (package / "launcher" / "placement" / "nothing.py").write_text(PLACEMENT)
    registry = package / "launcher" / "placement" / "__init__.py"
    text = registry.read_text()
    assert ROWS in text
    row = "from horovod.launcher.placement.nothing import NothingPlacement\n"
    registry.write_text(text.replace(ROWS, row + ROWS + "    NothingPlacement(),\n"))
    paths = {"PYTHONPATH": f"{package.parent}:{':'.join(filter(None, sys.path))}"}
    done = run_job(tmp_path, "-np", "2", "-H", "nowhere:2", python("print(os.environ['HOROVOD_HOSTNAME'])"), env=paths)
    assert (done.code, sorted(done.stdout.splitlines())) == (0, ["[0]<stdout>:nowhere", "[1]<stdout>:nowhere"]), done
    # Without the row it is the name of another machine.
    assert (
        "nowhere cannot be reached" in run_job(tmp_path, "-np", "2", "-H", "nowhere:2", "ls").stderr
    )  # ssh may be missing
    bare = run_job(tmp_path, "-np", "2", "-H", "nowhere:2", sys.executable, env={"PATH": str(tmp_path)})
    assert "nowhere cannot be reached: ssh is not installed here, or not on PATH\n    hint: install ssh" in bare.stderr
