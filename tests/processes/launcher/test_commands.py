# SPDX-License-Identifier: Apache-2.0
"""horovodrun's own names, and the user's command as horovodrun takes it and starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Job, python, run_job

import horovod


@pytest.mark.parametrize("module", ["launcher", "launcher.cli", "runner", "runner.launch"])
def test_a_module_with_a_main_function_is_a_program(tmp_path: Path, module: str) -> None:
    """Debuggers and job scripts start horovodrun by these names."""
    command = [sys.executable, "-m", f"horovod.{module}", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{horovod.__version__}\n"), done


def test_no_module_with_a_main_function_does_nothing_as_a_program() -> None:
    package = Path(horovod.__file__).parent
    silent = [
        path
        for path in package.rglob("*.py")
        if re.search(r"^def (main|run_commandline)\b|as (main|run_commandline)$", text := path.read_text(), re.M)
        and not re.search(r"^if __name__ == \"__main__\":$", text, re.M)
    ]
    assert silent == []


def test_the_beginning_of_a_line_is_shown_while_its_rank_goes_on(tmp_path: Path) -> None:
    """A prompt, dots, or "loading ... "."""
    code = "os.write(1, b'loading ... '); signal.sigwait([signal.SIGUSR1]); print('done')"
    with Job(tmp_path, "-np", "1", python(f"signal.pthread_sigmask(0, [signal.SIGUSR1]); {code}"), read=False) as job:
        assert job.process.stdout is not None
        assert os.read(job.process.stdout.fileno(), 100) == b"[0]<stdout>:loading ... "
        os.kill(job.launcher(), signal.SIGUSR1)
        assert job.process.stdout.read() == b"done\n"
        job.process.wait()


def test_ranks_share_the_cores_unless_the_user_says_how(tmp_path: Path) -> None:
    code = "print(os.environ['OMP_NUM_THREADS'])"
    for flags, ranks in (
        (["-H", "localhost:2", "-np", "2"], 2),
        (["-H", "localhost:9", "-np", "1", "--max-np", "1"], 9),
    ):
        flags += ["--min-np", "1"] if ranks == 9 else []
        done = run_job(tmp_path, *flags, python(code), env={"OMP_NUM_THREADS": ""})
        threads = max(1, len(os.sched_getaffinity(0)) // ranks)
        said = f"horovodrun: OMP_NUM_THREADS={threads} for each rank: a host's cores divided by its ranks"
        assert f"[0]<stdout>:{threads}\n" in done.stdout and done.stderr.startswith(said), done
    assert run_job(tmp_path, "-np", "2", python(code), env={"OMP_NUM_THREADS": "7"}).said == ""


def test_lines_of_one_rank_without_a_prefix(tmp_path: Path) -> None:
    flags = ["-np", "2", "--no-prefix", "--only-rank", "1", "--output-filename", "logs"]
    done = run_job(tmp_path, *flags, python("print('out', rank); print('err', rank, file=sys.stderr)"))
    assert (done.code, done.stdout, done.said) == (0, "out 1\n", "err 1\n"), done
    assert (tmp_path / "logs" / "rank.0" / "stdout").read_text() == "out 0\n"
    assert "--only-rank 2: the ranks are 0 to 1" in run_job(tmp_path, "-np", "2", "--only-rank", "2", "true").stderr


@pytest.mark.parametrize(
    ("size", "code", "said"),
    [
        ("2", "import horovod.core as hvd; hvd.is_initialized(); hvd.gloo_built()", True),
        ("1", "import horovod.core as hvd; hvd.is_initialized(); hvd.gloo_built()", False),
        ("2", "import horovod.core as hvd; hvd.init(); hvd.shutdown()", False),
        ("2", "import horovod.core as hvd; hvd.gloo_built(); sys.exit(3)", False),
    ],
)
def test_a_forgotten_init_is_said(tmp_path: Path, size: str, code: str, said: bool) -> None:
    done = run_job(tmp_path, "-np", size, python(code))
    assert ("no rank has called init: 2 processes have run alone" in done.stderr) is said, done


@pytest.mark.parametrize(
    ("command", "said"),
    [(["uname", "-s"], False), (["sh", "-c", "true"], True), ([sys.executable, "-c", "pass"], True), (["./s"], True)],
)
def test_a_program_that_starts_no_other_needs_no_init(tmp_path: Path, command: list[str], said: bool) -> None:
    (tmp_path / "s").write_text("#!/bin/sh\n")
    (tmp_path / "s").chmod(0o700)
    done = run_job(tmp_path, "-np", "2", *command)
    text = "horovodrun: no rank has called init in this job, which is right for a command without Horovod\nhint: if it"
    assert done.code == 0 and done.stderr.startswith(text if said else "") and bool(done.stderr) is said, done


@pytest.mark.parametrize("size", ["2", "1"])
def test_a_wrapper_that_drops_the_variables_is_told(tmp_path: Path, size: str) -> None:
    """By init, which sees the agent above it, and by horovodrun, for a container say, in which init does not."""
    code = "import horovod.core as hvd; hvd.init(); assert hvd.size() == 1"
    done = run_job(tmp_path, "-np", size, "env", "-i", sys.executable, "-c", code)
    assert done.code == 0
    assert done.stderr.count("this process trains alone (size 1): horovodrun (process ") == int(size), done
    assert ("if it does use Horovod, its 2 processes have run alone" in done.stderr) is (size == "2"), done
    meant = run_job(tmp_path, "-np", "1", "env", "-i", "HOROVOD_SIZE=1", sys.executable, "-c", code)
    assert meant.stderr == "", meant


def test_a_command_is_taken_as_a_shell_takes_it(tmp_path: Path) -> None:
    """With variables in front of it, which win, and a script that names no interpreter."""
    (tmp_path / "s.sh").write_text('echo "$X $HOME $1"\n')
    (tmp_path / "s.sh").chmod(0o700)
    for kind in ([], ["--min-np", "1"]):
        done = run_job(tmp_path, "-np", "1", *kind, "X=a=b", "HOME=", "./s.sh", "c d", env={"X": "other"})
        assert done.stdout == "[0]<stdout>:a=b  c d\n" and (kind or done.code == 0), done
    assert "there is no command to run" in run_job(tmp_path, "-np", "1", "X=5").stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"#!/bin/bash\r\necho\r\n", "ends with a carriage return (CRLF"),
        (b"#! /usr/bin/env python3\r\n", "ends with a carriage return (CRLF"),
        (b"#!/no/such/python -u\n", "names is not there: /no/such/python"),
        (b"\x7fELF\0 of another machine", "is a program for another kind of machine"),
    ],
)
def test_a_script_that_cannot_be_run_says_why(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "script").write_bytes(content)
    (tmp_path / "script").chmod(0o700)
    done = run_job(tmp_path, "-np", "1", "./script")
    assert done.code in (126, 127) and said in done.stderr, done
