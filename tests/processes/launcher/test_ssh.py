# SPDX-License-Identifier: Apache-2.0
"""What horovodrun asks of ssh, with a program of that name that stays on this machine. Real ones: tests/cluster."""

from __future__ import annotations

import os
import shlex
import signal
import time
from pathlib import Path

import pytest
from support.extent import SLACK_S
from support.jobs import Job, python, run_job
from support.patience import wait_until

from horovod.launcher.job.agents import _STARTING_AT_A_TIME

# Runs the command here, under the name of the host.
SSH = """#!/bin/bash
printf '%s\\n' "$*" >> "$LOG"
while [[ $1 != -- ]]; do shift; done
exec sh -c "$3"
"""


def fake(directory: Path, text: str = SSH) -> dict[str, str]:
    programs = directory / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(text)
    (programs / "ssh").chmod(0o755)
    return {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "LOG": str(directory / "log")}


def test_the_command_line_has_what_starts_the_agent_and_nothing_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    flags = ["-p", "2222", "-i", "key", "--network-interface", "lo"]
    env = {**fake(tmp_path), "TOKEN": "a-secret-of-the-user"}
    code = "print(os.environ['TOKEN'], open(os.environ['HOROVOD_SECRET_FILE'], 'rb').read().hex())"
    done = run_job(tmp_path, "-np", "1", "-H", "far-away:1", flags, python(code), env=env)
    assert done.code == 0, done
    token, secret = done.stdout.split(":", 1)[1].split()
    assert token == "a-secret-of-the-user"
    (line,) = (tmp_path / "log").read_text().splitlines()
    words = shlex.split(line)
    assert words[words.index("-p") + 1] == "2222" and words[words.index("-i") + 1] == "key"
    assert "BatchMode=yes" in words and words[words.index("--") + 1] == "far-away"
    assert "horovod.launcher.host.remote_agent" in line
    assert token not in line and secret not in line


def test_what_the_users_shell_prints_first_is_not_the_agents(tmp_path: Path) -> None:
    noise = SSH.replace("exec sh", 'echo \'{"event": "done"}\'; printf Welcome; exec sh')
    flags = ["--network-interface", "lo"]
    done = run_job(tmp_path, "-np", "1", "-H", "far-away:1", flags, "echo", "fine", env=fake(tmp_path, noise))
    assert (done.code, done.stdout) == (0, "[0]<stdout>:fine\n"), done


def many(directory: Path) -> list[str]:
    """The flags for some hosts more than are started at a time."""
    names = [f"far-{number} slots=1\n" for number in range(_STARTING_AT_A_TIME + 3)]
    (directory / "hosts").write_text("".join(names))
    return ["-np", str(len(names)), "--hostfile", "hosts", "--network-interface", "lo"]


@pytest.mark.slow("an agent for each of many hosts")
def test_many_hosts_are_all_started(tmp_path: Path) -> None:
    done = run_job(tmp_path, many(tmp_path), "sh", "-c", "echo $HOROVOD_HOSTNAME", env=fake(tmp_path))
    assert done.code == 0, done
    expected = [f"[{number}]<stdout>:far-{number}" for number in range(_STARTING_AT_A_TIME + 3)]
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_a_limited_number_of_hosts_is_asked_at_a_time(tmp_path: Path) -> None:
    """Each ssh writes how many there are, itself included, and hangs."""
    there = tmp_path / "there"
    there.mkdir()
    text = (
        f"#!/bin/bash\ncd {there}\ntouch $$\ncount=0\n"
        'for pid in *; do kill -0 "$pid" 2>/dev/null && count=$((count + 1)); done\n'
        'echo $count >> "$LOG"\nexec sleep 1000\n'
    )
    log = tmp_path / "log"
    with Job(tmp_path, many(tmp_path), "--start-timeout", "1000", "true", env=fake(tmp_path, text)) as job:
        wait_until(lambda: log.exists() and log.read_text().count("\n") >= _STARTING_AT_A_TIME, job.shown)
        job.process.send_signal(signal.SIGINT)
        assert job.wait().code == 130
    assert max(map(int, log.read_text().split())) == log.read_text().count("\n") == _STARTING_AT_A_TIME


def test_a_signal_while_hosts_are_asked_ends_them(tmp_path: Path) -> None:
    hangs = '#!/bin/sh\necho asked >> "$LOG"\necho asked >&2\nexec sleep 1000\n'
    env = fake(tmp_path, hangs)
    with Job(tmp_path, "-np", "2", "-H", "far-away:1,farther:1", "echo", "started", env=env) as job:
        log = tmp_path / "log"
        wait_until(lambda: log.exists() and log.read_text().count("asked") == 2, job.shown)
        began = time.monotonic()
        job.process.send_signal(signal.SIGINT)
        done = job.wait()
    assert time.monotonic() - began < 2.0 + SLACK_S  # there is no rank that needs time to end
    assert (done.code, done.stdout) == (130, "")
    assert "not ready" not in done.stderr


@pytest.mark.parametrize(
    "end, expected",
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", "cannot be reached by ssh: Permission denied"),
        ("exit 127", "has no Python at"),
        ("echo \"ModuleNotFoundError: No module named 'horovod'\" >&2; exit 1", "cannot import horovod"),
        ("echo 'Killed' >&2; exit 3", "could not start the agent (exit code 3): Killed"),
        (
            "echo 'over quota'; echo 'go away' >&2; exit 3",
            "could not start the agent (exit code 3): its last words were\n      over quota\n      go away\n",
        ),
        ("kill -9 $$", "cannot be reached by ssh"),
        ("exec sleep 1000", "did not answer within 1 s\n"),
        ("echo 'wait a moment'; exec sleep 1000", "did not answer within 1 s; the last that came from it was: wait a "),
    ],
)
def test_an_ssh_that_ends_or_hangs_is_a_reason(tmp_path: Path, end: str, expected: str) -> None:
    env = fake(tmp_path, f"#!/bin/sh\n{end}\n")
    hangs = "sleep" in end  # within a limit that a host of a busy machine may need
    which, hosts = ("host far-away is", "far-away:2") if hangs else ("1 of 2 hosts are", "localhost:1,far-away:1")
    flags = ["--start-timeout", "1"] if hangs else []
    done = run_job(tmp_path, "-np", "2", "-H", hosts, flags, "echo", "started", env=env)
    assert (done.code, done.stdout) == (1, ""), done
    assert f"horovodrun: {which} not ready; nothing was started" in done.stderr
    assert f"  far-away {expected}" in done.stderr
