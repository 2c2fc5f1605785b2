# SPDX-License-Identifier: Apache-2.0
"""`horovodrun --drill` on this machine, and command lines that it refuses. Others: tests/cluster/jobs/test_drill.py."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from support.jobs import Job, run_job


@pytest.mark.slow("all drills")
def test_the_drills_of_a_healthy_machine_hold(tmp_path: Path) -> None:
    done = run_job(tmp_path, "--drill", "-np", "2", "-prefix-timestamp")
    assert done.code == 0, done
    rows = re.findall(r"^(ok|BAD|-) +(\w+) ", done.stdout, re.M)
    assert rows[0] == ("-", "links") and "not run: there is only one host" in done.stdout
    assert rows[1:] == [("ok", name) for name in ("memory", "GPUs", "kill", "freeze", "late", "elastic")]
    assert "rank 1 named" in done.stdout and "reported; rank 1 was waited for, 2." in done.stdout
    assert "40 steps" in done.stdout
    assert re.findall(r"horovodrun: drill: (\w+)\n", done.stderr) == ["checks", "kill", "freeze", "late", "elastic"]


def test_a_job_that_does_not_start_is_the_only_row(tmp_path: Path) -> None:
    done = run_job(tmp_path, "--drill", "-np", "2", env={"HOROVOD_PRETEND_HOSTS": "3"})
    assert done.code == 1
    assert re.search(r"^BAD +start ", done.stdout, re.M) and "fix: no job starts with these flags" in done.stdout
    assert "kill" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_an_interrupted_drill_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with Job(tmp_path, "--drill", "-np", "2") as job:
        job.wait_for_line("drill: kill", "stderr")
        os.kill(job.process.pid, number)
        done = job.wait()
    assert done.code == code and "Traceback" not in done.stderr, done


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-np", "2", "python", "train.py"], "--drill runs jobs of its own, got a command: python"),
        (["-np", "1"], "--drill with one rank"),
        (["-np", "2", "--min-np", "1"], "leave --mpi, --jsrun and the flags of elastic jobs out"),
        (["-np", "2", "--only-rank", "0"], "--drill needs the lines of all ranks"),
        (["-np", "2", "-H", "localhost:1"], "slots"),
    ],
)
def test_a_command_line_without_a_drill_is_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = run_job(tmp_path, "--drill", *arguments)
    assert done.code == 2 and said in done.stderr, done
