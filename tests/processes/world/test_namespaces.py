# SPDX-License-Identifier: Apache-2.0
"""Ranks in containers that share nothing but the network: in PID or user namespaces, or without memfd_create."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support.extent import SLACK_S, needs_unshare
from support.jobs import Job, run_job

SUM = (
    "import os, numpy as np, horovod.core as hvd; hvd.init()\n"
    "os.write(1, b'sum %d\\n' % hvd.allreduce(np.ones(1), op=hvd.Sum)[0])\n"
)
PIDS, USER = ("--pid", "--fork", "--mount-proc"), ("--user", "--map-root-user")
# Rank 0 stays where horovodrun is.
ONE_OF_TWO = ["sh", "-c", '[ "$HOROVOD_RANK" = 0 ] || exec unshare --pid --fork --mount-proc "$@"; exec "$@"', "sh"]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize(
    "wrapper",
    [
        pytest.param(["unshare", *PIDS], marks=needs_unshare(*PIDS), id="pids"),
        pytest.param(["unshare", *USER], marks=needs_unshare(*USER), id="user"),
        pytest.param(ONE_OF_TWO, marks=needs_unshare(*PIDS), id="one of two"),
    ],
)
def test_ranks_in_namespaces_of_their_own_meet(tmp_path: Path, wrapper: list[str], transport: str) -> None:
    env = {"HOROVOD_TRANSPORT": transport}
    done = run_job(tmp_path, "-np", "2", [*wrapper, sys.executable, "-c", SUM], env=env)
    assert (done.code, done.stdout.count("sum 2")) == (0, 2), done


LIVES = """
import os, time, numpy as np, horovod.core as hvd
hvd.init()
os.write(1, b"ready %d\\n" % hvd.rank())
try:
    while True: hvd.allreduce(np.ones(10), name="x")
except hvd.HorovodInternalError as error:
    os.write(1, b"noticed at %.3f\\n" % time.time())
    raise
"""


@needs_unshare(*PIDS)
def test_a_rank_that_is_killed_in_a_pid_namespace_of_its_own_is_noticed_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIVES.replace("hvd.HorovodInternalError", "RuntimeError"))
    with Job(tmp_path, "-np", "2", [*ONE_OF_TWO, sys.executable, "train.py"]) as job:
        job.wait_for_line("ready", count=2)
        (victim,) = (
            int(entry)
            for entry in os.listdir("/proc")
            if entry.isdigit() and re.search(r"^NSpid:\t\d+\t1$", status_of(entry), re.MULTILINE)
        )
        killed_s = time.time()
        os.kill(victim, signal.SIGKILL)
        (noticed,) = job.wait_for_line(r"noticed at ([\d.]+)")
        done = job.wait()
    assert float(noticed[1]) - killed_s < 0.5 + SLACK_S
    assert "rank 1 (process 1 of a PID namespace of its own) died without leaving the job" in done.stderr
    assert "horovodrun: rank 1 on host localhost " in done.stderr


def status_of(pid: str) -> str:
    """Of a process of this test's job; empty for any other."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return Path(f"/proc/{pid}/status").read_text() if b"\0train.py\0" in command else ""
    except OSError:
        return ""


# Runs the rest of its command line under a seccomp filter: the first of its words is the error of memfd_create.
WITHOUT_MEMFD = r"""
import ctypes, os, platform, struct, sys
number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | int(sys.argv[1])), (6, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(program)))
assert libc.prctl(22, 2, filter, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_a_refused_memfd_create_is_done_without(tmp_path: Path, error: str) -> None:
    number = str({"EPERM": 1, "ENOSYS": 38}[error])
    filtered = [sys.executable, "-c", WITHOUT_MEMFD, number]
    launcher = [sys.executable, "-m", "horovod.launcher", "-np", "2", sys.executable, "-c", SUM]
    # The inner horovodrun and all that it starts have the filter.
    done = run_job(tmp_path, "-np", "1", [*filtered, "env", "-u", "HOROVOD_RANK", *launcher])
    assert (done.code, done.stdout.count("sum 2")) == (0, 2), done
