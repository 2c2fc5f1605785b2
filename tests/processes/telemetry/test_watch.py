# SPDX-License-Identifier: Apache-2.0
"""horovodrun jobs, top, stacks and --summary, on running jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.elastic.elastic_jobs import ElasticJob
from support.jobs import Job, python, run_job
from support.patience import LIMIT_S, patiently
from support.started import mpi
from support.watch import id_of, look, script, shown_until

from horovod.world import job_files


@contextlib.contextmanager
def terminal(
    command: list[str], columns: int, rows: int
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A command on a terminal of this size, and what it has written there when it has ended."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    written = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 1 << 16):
                written.extend(data)

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as job:
        os.close(its)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()

        def shown() -> str:
            reader.join(LIMIT_S)
            return written.decode()

        yield job, shown
    os.close(ours)


@pytest.mark.slow("a job that others watch")
def test_a_running_job_is_listed_shown_and_judged(tmp_path: Path) -> None:
    command, enough = script(tmp_path, "listed")
    with Job(tmp_path, "-np", "3", "--summary", command) as job:
        job.wait_ready(3)
        name = id_of(command[1])
        late = (
            r"rank 1 \(host \S+\) has been \d\d+ ms late in each step since step \d+: it is in prepare "
            r"\(listed_\d+.py:\d+\)"
        )
        text = shown_until(late, "top", name, "--once")
        assert f"job {name}: 3 ranks on 1 host" in text
        stacks = shown_until(r"2 ranks \(0, 2\) at listed_\d+.py:\d+ ", "stacks", name)  # as it is most of the time
        assert "rank 1 at listed_" in stacks and " in prepare" in stacks
        assert "no running job of this user on this host has the id 'zzz'" in look("top", "zzz", "--once")
        enough.touch()
        done = job.wait()
    assert done.code == 0, done
    assert re.search(r"horovodrun: 0:\d\d:\d\d, \d[\d,]* steps, ", done.stderr)
    assert re.search(
        r"horovodrun: the others waited longest for rank 1 \(host \S+\): \d\d+% of all waiting", done.stderr
    )
    assert re.search(rf"horovodrun: {late}", done.stderr)
    assert name not in look("jobs")


def test_a_short_job_has_no_summary_unless_it_is_asked_for(tmp_path: Path) -> None:
    code = "import horovod.core as hvd; hvd.init()"
    assert run_job(tmp_path, "-np", "2", python(code)).stderr == ""
    assert " steps, " in run_job(tmp_path, "-np", "2", "--summary", python(code)).stderr


@pytest.mark.slow("jobs of several ranks")
@pytest.mark.check
def test_ranks_of_mpirun_can_be_seen(tmp_path: Path) -> None:
    command, enough = script(tmp_path, "by_mpi")
    mpirun, its_python = mpi("mpich")
    words = [*mpirun, "-n", "2", its_python, command[1]]
    with subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}) as job:
        try:
            name = id_of(command[1])
            assert "rank 1" in shown_until(r"rank 1 \(host \S+\) has been", "top", name, "--once")
            shown_until(" in prepare", "stacks", name)
        finally:
            enough.touch()
        assert patiently(job.wait) == 0


@pytest.mark.slow("an elastic job beside horovodrun top")
def test_an_elastic_job_is_seen_while_it_loses_a_worker(tmp_path: Path) -> None:
    mark = f"MARK=elastic-{os.getpid()}"
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "2", "--summary", "env", mark) as job:
        pids = job.wait_for_world(3)
        name = id_of(mark)
        shown_until("3 ranks on 1 host, step [1-9]", "top", name, "--once")
        os.kill(pids[2], 9)
        job.wait_for_world(2)
        shown_until(r"3 ranks on \d hosts?, generation \d+, step \d", "top", name, "--once")
        said = job.finish()
    assert "horovodrun: workers left or joined" in said


def test_another_user_sees_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not run: only root can be another user")
    command, enough = script(tmp_path, "of_other")
    with Job(tmp_path, "-np", "2", command) as job:
        job.wait_ready(2)
        name = id_of(command[1])
        (path, *_) = [one.path for one in job_files.running_jobs() if one.id == name]
        # Imports first: the other user may not be allowed to read where Horovod is installed.
        code = (
            "import os, sys\nfrom horovod.launcher.watch.jobs import jobs\n"
            "os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)\n"
            "print(jobs(), flush=True)\nopen(sys.argv[1])"
        )
        seen = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
        assert seen.stdout == "no job of this user runs on this host\n", seen
        assert f"PermissionError: [Errno 13] Permission denied: '{path}'" in seen.stderr
        enough.touch()
        job.wait()


def test_no_file_is_left_of_ranks_that_are_killed(tmp_path: Path) -> None:
    command, _ = script(tmp_path, "killed")
    with Job(tmp_path, "-np", "2", command) as job:
        pids = job.wait_ready(2)
        name = id_of(command[1])
        paths = [path for path in Path(f"/tmp/horovod-{os.geteuid()}").iterdir() if path.name.startswith(name)]
        assert len(paths) == 2 and all(path.stat().st_mode & 0o077 == 0 for path in paths)  # horovodrun's and a rank's
        os.kill(pids[0], 9)
        assert job.wait().code != 0
    assert not any(path.exists() for path in paths)


def test_ranks_that_are_to_say_nothing_say_nothing(tmp_path: Path) -> None:
    code = "import horovod.core as hvd, threading; hvd.init(); print([one.name for one in threading.enumerate()])"
    env = {"HOROVOD_STATUS_INTERVAL_SECONDS": "0"}
    done = run_job(tmp_path, "-np", "2", "--summary", python(code), env=env)
    assert done.code == 0 and "horovod-status" not in done.stdout and "steps" not in done.stderr


def test_top_shows_a_job_in_its_own_terminal_and_then_all_that_it_has_printed(tmp_path: Path) -> None:
    code = "import horovod.core as hvd, time; hvd.init(); print('begin', rank, flush=True); time.sleep(5); print('end')"
    command = [sys.executable, "-m", "horovod.launcher", "-np", "2", "--top", *python(code)]
    with terminal(command, columns=80, rows=24) as (job, shown):
        assert patiently(job.wait) == 0
        text = shown()
    drawn, left, rest = text.rpartition("\x1b[?1049l")  # leaves the second screen
    assert left and re.search(r"job \w{6}: 2 ranks on 1 host", drawn) and "begin 0" in drawn
    for words in ("[0]<stdout>:begin 0\r\n", "[1]<stdout>:end\r\n"):
        assert words in rest


@pytest.mark.slow("a job that is drawn for seconds")
def test_top_without_a_terminal_is_printed_among_the_output(tmp_path: Path) -> None:
    command, enough = script(tmp_path, "plain")
    with Job(tmp_path, "-np", "2", "--top", command) as job:
        job.wait_for_text(r"horovodrun: job \w{6}: 2 ranks on 1 host, step \d+")
        enough.touch()
        assert job.wait().code == 0
