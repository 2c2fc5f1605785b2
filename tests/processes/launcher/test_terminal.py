# SPDX-License-Identifier: Apache-2.0
"""horovodrun on a terminal that is closed, and with streams that cannot be written."""

from __future__ import annotations

import ast
import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pytest
from support.jobs import Job, our_environment, python
from support.patience import patiently, wait_until

from horovod.launcher.host import processes

RUN = [sys.executable, "-m", "horovod.launcher", "-np", "1"]
SAYS_WHEN_ASKED = """
def asked(*_):
    open('asked', 'w').close()
    sys.exit(0)
signal.signal(signal.SIGTERM, asked)
open('ready', 'w').close()
while True: signal.pause()
"""


def test_ranks_are_asked_to_end_when_the_terminal_is_closed(tmp_path: Path) -> None:
    """What horovodrun says then cannot be written, and the signal comes more than once."""
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [*RUN, *python(SAYS_WHEN_ASKED)],
        cwd=tmp_path,
        env=our_environment(TMPDIR=str(tmp_path)),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: (
            signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the suite may itself run under nohup
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0),
        ),
    )
    os.close(terminal)
    wait_until((tmp_path / "ready").exists)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert patiently(process.wait) == 128 + signal.SIGHUP
    assert (tmp_path / "asked").exists()


def test_the_exit_code_is_the_ranks_own_if_stderr_is_closed_or_full(tmp_path: Path) -> None:
    fails = [*RUN, "--verbose", "sh", "-c", "exit 3"]
    for stderr in ("2>&-", "2>/dev/full"):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {stderr}', "sh", *fails], cwd=tmp_path, env=our_environment(TMPDIR=str(tmp_path))
        )
        assert done.returncode == 3, stderr


def test_ctrl_z_twice_suspends_once(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\nready()\nwhile True: signal.pause()"
    with Job(tmp_path, "-np", "1", python(code)) as job:
        (pid,) = job.wait_ready(1).values()
        os.kill(job.agent(), signal.SIGSTOP)  # it is slow to answer
        for _ in range(2):
            job.process.send_signal(signal.SIGTSTP)
            wait_until(lambda: not pending(job.process.pid, signal.SIGTSTP))
        os.kill(job.agent(), signal.SIGCONT)
        assert os.WIFSTOPPED(os.waitpid(job.process.pid, os.WUNTRACED)[1])
        job.process.send_signal(signal.SIGCONT)
        wait_until(lambda: processes.state(pid) == "S")
        os.kill(pid, signal.SIGUSR1)
        assert job.wait().code == 0


def pending(pid: int, number: signal.Signals) -> bool:
    fields = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return bool((int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)) >> (number - 1) & 1)


# A copy of Python that belongs to root whoever starts it, as sudo does.
STAYS = "import os, time; os.setuid(0); print('up', flush=True); time.sleep(1000)"


@pytest.mark.skipif(os.geteuid() != 0, reason="not run: only root can make a process that another user may not end")
def test_a_process_that_may_not_be_ended_keeps_nobody_waiting() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: S103
        python_of_root = shutil.copy(os.path.realpath(sys.executable), folder)
        os.chmod(python_of_root, 0o4755)  # noqa: S103
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                processes.become_subreaper()
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                started = subprocess.Popen([python_of_root, "-c", STAYS], stdout=subprocess.PIPE, cwd="/")
                assert started.stdout is not None and started.stdout.readline() == b"up\n"
                left = processes.end_descendants(0.2)
                told = (left == [started.pid], processes.why_left(started.pid))
                os.write(writer, repr((started.pid, told)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as said:
            pid, told = ast.literal_eval(said.read())
        os.waitpid(child, 0)
        os.kill(pid, signal.SIGKILL)
    name = os.path.basename(python_of_root)[:15]
    assert told == (True, f"process {pid} ({name}) has not ended: it belongs to another user, or is slow to end")
