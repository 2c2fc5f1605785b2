# SPDX-License-Identifier: Apache-2.0
"""Signals that horovodrun and its agents inherit, pass on, or get from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import GONE_S, Job, python

TELLS = "signal.signal(signal.SIGUSR1, lambda *_: print('one', rank)); "
WAITS = "signal.signal(signal.SIGUSR2, lambda *_: sys.exit()); ready()\nwhile True: signal.pause()"
ALL = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def test_a_mask_of_the_parent_stops_neither_horovodrun_nor_its_ranks(tmp_path: Path) -> None:
    """A service manager, a notebook or a pool of threads may leave one behind."""
    code = (
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGCHLD)); ready(); signal.pause()"
    )
    with Job(tmp_path, "-np", "2", python(code), blocked=ALL) as job:
        job.wait_ready(2)
        os.kill(job.launcher(), signal.SIGTERM)
        done = job.wait()
        assert done.code == 143 and done.stdout.count("set() ") == 2, done


def test_the_agents_of_a_parent_that_blocks_signals_end_with_their_launcher(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "2", python("ready(); signal.pause()"), blocked=ALL) as job:
        job.wait_ready(2)
        os.kill(job.launcher(), signal.SIGKILL)
        job.wait()
        job.assert_gone(GONE_S + 3.0)


def test_a_parent_that_ignores_the_ends_of_children_changes_no_exit_code(tmp_path: Path) -> None:
    ignores = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # noqa: E731
    command = [sys.executable, "-m", "horovod.launcher", "-np", "1", sys.executable, "-c", "raise SystemExit(7)"]
    assert subprocess.run(command, cwd=tmp_path, preexec_fn=ignores).returncode == 7


@pytest.mark.parametrize("receiver", [Job.launcher, Job.agent])
@pytest.mark.parametrize("kind", [[], ["--min-np", "1"]], ids=["fixed", "elastic"])
def test_signals_for_users_reach_all_ranks_once(tmp_path: Path, receiver: object, kind: list[str]) -> None:
    """Slurm's --signal=USR1@60, for example."""
    assert callable(receiver)
    flags = ["-np", "2", "-H", "localhost:1,127.0.0.1:1", *kind]
    with Job(tmp_path, *flags, python(TELLS + WAITS)) as job:
        job.wait_ready(2)
        os.kill(receiver(job), signal.SIGUSR1)
        job.wait_for_line("one", count=2)
        os.kill(receiver(job), signal.SIGUSR2)
        done = job.wait()
        assert done.stdout.count("one") == 2


def test_an_agent_that_was_sent_sigterm_is_named(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "2", python("ready(); signal.pause()")) as job:
        job.wait_ready(2)
        os.kill(job.agent(), signal.SIGTERM)
        done = job.wait()
    assert done.code == 143, done
    said = "horovodrun: the agent that holds the ranks of host localhost was sent SIGTERM by something outside this job"
    assert done.stderr.startswith(said) and "rank" not in done.stderr.partition("ended\n")[2].partition("more:")[0], (
        done
    )


def test_a_worker_is_lost_with_an_agent_that_was_sent_sigterm(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "1", "--min-np", "1", python("ready(); signal.pause()")) as job:
        job.wait_ready(1)
        os.kill(job.agent(), signal.SIGTERM)
        job.wait_for_line("host localhost was lost: its agent was sent SIGTERM by something outside", "stderr")
        job.process.terminate()
        job.wait()
