# SPDX-License-Identifier: Apache-2.0
"""Workers of elastic jobs that end, hang or differ where nobody expects it; hosts that are not ready or are lost."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from support.elastic.elastic_jobs import SCRIPT, ElasticJob
from support.jobs import run_job

ONE, TWO, THREE = "localhost", "127.0.0.1", socket.gethostname()


def test_a_worker_that_ends_with_success_in_the_midst_is_replaced(tmp_path: Path) -> None:
    act = "if state.step == 5: sys.exit(0) if worker == 1 else time.sleep(1)"
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", act=act) as job:
        job.wait_for_world(2)
        assert set(job.wait_for_world(1)) == {0}
        assert set(job.wait_for_world(2)) == {0, 2}
        job.finish()


def test_a_script_whose_last_worker_fails_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, time\nimport horovod.core as hvd\nimport horovod.elastic.worker.wrapper\nhvd.init()\n"
        "sys.exit(0) if hvd.rank() == 0 else time.sleep(1)\nsys.exit(3)\n"
    )
    done = run_job(tmp_path, "-np", "2", "--min-np", "1", [sys.executable, "train.py"])
    assert done.code == 3 and done.stderr.endswith("more: horovodrun --explain elastic-state-lost\n"), done.stderr


def test_the_last_words_of_a_worker_are_heard_before_its_end(tmp_path: Path) -> None:
    """The agent finds all of it at once: more than it reads at a time, and the end."""
    script = (
        "import fcntl, os, sys, time\nfcntl.fcntl(2, fcntl.F_SETPIPE_SZ, 1 << 20)\n"
        "print('agent', os.getppid(), flush=True)\n"
        "while not os.path.exists('end'): time.sleep(0.01)\n"
        "sys.stderr.write(f'{0:99}\\n' * 5000)\nraise ValueError('the last words')\n"
    )
    with ElasticJob(tmp_path, "-np", "1", "--min-np", "1", script=script) as job:
        (found,) = job.wait_for_line(r"agent (\d+)")
        agent = int(found[1])
        os.kill(agent, signal.SIGSTOP)
        (tmp_path / "end").touch()
        time.sleep(1)
        os.kill(agent, signal.SIGCONT)
        assert "worker 0 on localhost exited with code 1 (ValueError: the last words)" in job.wait().stderr


def test_a_joiner_that_hangs_is_ended_and_another_one_joins(tmp_path: Path) -> None:
    script = SCRIPT.replace("act = compile", "time.sleep(1000 if worker == 2 else 0)\nact = compile")
    env = {"HOROVOD_ELASTIC_JOIN_SECONDS": "4"}
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", script=script, env=env) as job:
        os.kill(job.wait_for_world(2)[1], signal.SIGKILL)
        job.wait_for_line("worker 2 .*was ended: it was not ready within 4 s|gets another worker in 2 s", "stderr")
        joined = job.wait_for_world(2)
        assert 0 in joined and max(joined) > 2
        job.finish()


def test_workers_that_finish_apart_end_the_job(tmp_path: Path) -> None:
    script = SCRIPT.replace("while not over:", "for _ in range(10 + worker):")
    env = {"HOROVOD_ELASTIC_STRAGGLER_SECONDS": "2"}
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", script=script, env=env) as job:
        assert job.wait().code == 1, job.shown()


def test_a_host_has_one_agent_however_often_the_hosts_change_while_it_starts(tmp_path: Path) -> None:
    env = {"HOROVOD_ELASTIC_DISCOVERY_SECONDS": "0.05"}
    with ElasticJob(tmp_path, "-np", "1", "--min-np", "1", hosts=f"{ONE}:1", env=env) as job:
        job.wait_for_world(1)
        job.set_hosts(f"{ONE}:1 {TWO}:1")
        time.sleep(0.15)
        job.set_hosts(f"{ONE}:1 {TWO}:1 {THREE}:1")
        time.sleep(0.15)
        job.set_hosts(f"{ONE}:1 {TWO}:1 {THREE}:2")
        job.wait_for_world(4)
        assert sum("horovod.launcher.host.agent" in command for command in job.pids().values()) == 3
        job.finish()


def test_a_lost_host_is_left_as_one_whose_worker_has_failed(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", hosts=f"{ONE}:1 {TWO}:1") as job:
        worker = job.wait_for_world(2)[1]
        agent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        job.wait_for_world(1)
        job.set_hosts(f"{ONE}:2 {TWO}:1")
        assert set(job.wait_for_world(2)) == {0, 2}
        said = job.finish()
    assert f"host {TWO} was lost: its agent was killed by SIGKILL; it is no longer used\nhint: --blacklist" in said


def test_a_host_of_the_command_line_that_is_not_ready_is_spoken_of(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "1", "--min-np", "1", "-H", f"{ONE}:1,no-such-host.invalid:1") as job:
        job.wait_for_line("no-such-host.invalid ", "stderr")
        job.wait_for_world(1)
        job.finish()
