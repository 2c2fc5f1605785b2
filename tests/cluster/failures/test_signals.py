# SPDX-License-Identifier: Apache-2.0
"""Signals to horovodrun whose ranks run on several hosts: whatever comes, nothing is left anywhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cluster.failures.test_failures import (
    CHILD,
    HOSTS,
    MEET,
    SOON,
    SOON_S,
    TRAIN,
    assert_empty_within,
    fields_of,
    keeper_and_agent,
)
from support.cluster import Host, MakeCluster
from support.extent import SLACK_S
from support.jobs import Job, python
from support.patience import wait_until


def ranks_of(host: Host) -> list[int]:
    return [
        pid for pid, command in host.processes().items() if "gradients" in command and "horovod.launcher" not in command
    ]


def test_a_second_ctrl_c_ends_ranks_of_other_hosts_that_do_not_want_to(cluster: MakeCluster, tmp_path: Path) -> None:
    one, two = cluster(2).hosts
    stubborn = "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
    script = python(CHILD + stubborn + MEET + "while True: signal.pause()")
    with Job(tmp_path, HOSTS, "--termination-grace-seconds", "60", script, on=one) as job:
        job.wait_ready(4)
        os.kill(job.launcher(), signal.SIGINT)
        job.wait_for_line("asked", count=4)
        os.kill(job.launcher(), signal.SIGINT)
        assert_empty_within(5.0, one, two)
        assert job.wait().code == 130


@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_stopped_horovodrun_suspends_its_own_machine_and_the_others_end(
    cluster: MakeCluster, tmp_path: Path, then: signal.Signals
) -> None:
    """Only Ctrl-Z suspends all hosts. The ranks of the others lose those that are suspended, and end."""
    one, two = cluster(2).hosts
    with Job(tmp_path, HOSTS, python(CHILD + TRAIN), env=SOON, on=one) as job:
        job.wait_ready(4)
        os.kill(job.launcher(), signal.SIGSTOP)
        wait_until(
            lambda: not ranks_of(two) and {fields_of(pid)[0] for pid in ranks_of(one)} == {"T"},
            lambda: (ranks_of(two), one.processes()),
            SOON_S + 4.0 + SLACK_S,
        )
        assert len(ranks_of(one)) == 2
        os.kill(job.launcher(), then)
        assert_empty_within(6.0, one, two)
        os.kill(job.process.pid, signal.SIGCONT)  # what carries it here has stopped with it
        done = job.wait()
    if then == signal.SIGCONT:
        assert done.code == 1, done
        # The reason is in the rank's last lines, or in the line after them: it is said once.
        words = done.stderr[done.stderr.index("\nhorovodrun: ") + 1 :]
        assert "rank 0 has given no sign of life for" in words, done.stderr


def test_signals_and_the_end_of_an_agents_keeper_reach_ranks_of_other_hosts(
    cluster: MakeCluster, tmp_path: Path
) -> None:
    one, two = cluster(2).hosts
    tells = "signal.signal(signal.SIGUSR1, lambda *_: print('told', flush=True))\nready()\nwhile True: signal.pause()"
    with Job(tmp_path, HOSTS, python(tells), on=one) as job:
        job.wait_ready(4)
        for receiver in (job.launcher(), keeper_and_agent(two)[0]):
            os.kill(receiver, signal.SIGUSR1)
            job.wait_for_line("told", count=4)
        os.kill(keeper_and_agent(two)[0], signal.SIGKILL)
        done = job.wait()
        assert_empty_within(5.0, one, two)
    assert done.stdout.count("told") == 8, done
    said = "horovodrun: the agent that holds the ranks of host host1 ended because its parent process on that host"
    assert said in done.stderr and "horovodrun: rank" not in done.stderr, done
