# SPDX-License-Identifier: Apache-2.0
"""How a process with MPI ends, with a stand-in for mpi4py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MPI = """
import os
THREAD_MULTIPLE = 3
_initialized = False
def Is_initialized(): return _initialized
def Is_finalized(): return False
def Init_thread(level):
    global _initialized
    _initialized = True
def Finalize(): os.write(1, b"finalize")
class COMM_WORLD:
    size, rank = 2, 0
    @staticmethod
    def Abort(code): os.write(1, b"abort")  # and comes back, as if mpirun could not be reached
"""


def end_of(folder: Path, script: str, before: str = "") -> tuple[int, str]:
    package = folder / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("class rc: finalize = None\n")
    (package / "MPI.py").write_text(MPI)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", f"{before}\nfrom horovod.world import mpi\nmpi.opened()\n{script}"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "script, code, said",
    [
        ("", 0, "finalize"),
        ("mpi.abort_at_exit()", 1, "abort"),
        ("raise ValueError", 1, "abort"),
        ("raise SystemExit(3)", 3, "finalize"),
        ("mpi.start_failed()", 0, "finalize"),  # the script has caught the error
    ],
)
def test_after_a_failure_mpi_is_aborted_and_never_finalized(tmp_path: Path, script: str, code: int, said: str) -> None:
    assert end_of(tmp_path, script) == (code, said)


@pytest.mark.parametrize(
    "script, code, said",
    [("raise ValueError", 1, ""), ("mpi.start_failed(); raise ValueError", 1, "abort")],
)
def test_mpi_of_the_script_is_aborted_if_init_has_failed(tmp_path: Path, script: str, code: int, said: str) -> None:
    """The other ranks may be in init, or in MPI_Finalize already: neither knows what becomes of this one."""
    assert end_of(tmp_path, script, "from mpi4py import MPI; MPI.Init_thread(3)") == (code, said)


def test_an_abort_that_never_returns_does_not_keep_the_process(tmp_path: Path) -> None:
    """As on a host that mpirun cannot be reached from."""
    hangs = "import sys, time\nsys.modules['mpi4py.MPI'].COMM_WORLD.Abort = lambda code: time.sleep(1000)\n"
    assert end_of(tmp_path, hangs + "mpi.abort_at_exit()") == (-signal.SIGALRM, "")


def test_ranks_abort_mpi_one_after_the_other(tmp_path: Path) -> None:
    """The mpirun of Open MPI may never end if ranks of several hosts abort at once."""
    waits = """
import contextlib, os, signal, sys, time
world, ends = sys.modules["mpi4py.MPI"].COMM_WORLD, mpi._end
def abort(code): raise InterruptedError
world.Abort = abort
time.sleep = lambda seconds: os.write(1, b"%.1f " % seconds)
mpi.abort_at_exit()
for world.rank in (0, 1, 3, 1000):
    with contextlib.suppress(InterruptedError):
        ends(os.getpid())
signal.setitimer(signal.ITIMER_REAL, 0)
world.size = 1
"""
    assert end_of(tmp_path, waits) == (0, "1.0 1.5 2.5 3.0 finalize")
