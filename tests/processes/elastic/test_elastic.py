# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on this machine: workers are lost, replaced, added and taken away, and no step is lost or counted twice.

Hosts are names of this machine here: each has its own agent, and they share no memory.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from support.elastic.elastic_jobs import SCRIPT, ElasticJob
from support.jobs import run_job

ONE, TWO, THREE = "localhost", "127.0.0.1", socket.gethostname()


@pytest.mark.parametrize(
    ("np", "transport"),
    [(2, "tcp"), (4, "shm"), *(pytest.param(*more, marks=pytest.mark.thorough) for more in ((2, "shm"), (4, "tcp")))],
)
def test_a_killed_worker_is_replaced_and_the_others_stay(tmp_path: Path, np: int, transport: str) -> None:
    with ElasticJob(tmp_path, "-np", str(np), "--min-np", "1", env={"HOROVOD_TRANSPORT": transport}) as job:
        pids = job.wait_for_world(np)
        os.kill(pids[np - 1], signal.SIGKILL)
        assert set(job.wait_for_world(np - 1).items()) < set(pids.items())
        assert set(pids.items()) - {(np - 1, pids[np - 1])} < set(job.wait_for_world(np).items())
        said = job.finish()
    assert f"generation 2: worker {np - 1} on localhost was killed by SIGKILL; " in said
    assert f"1 loss survived: worker {np - 1} on localhost was killed by SIGKILL" in said


def test_a_worker_in_reserve_replaces_a_lost_one_at_once(tmp_path: Path) -> None:
    reserve = ["--max-np", "2", "--spares", "1"]
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "2", *reserve) as job:
        pids = job.wait_for_world(2)
        job.wait_for_text(r"worker 2 on localhost is ready after \S+ s; it waits in reserve")
        os.kill(pids[1], signal.SIGKILL)
        assert job.wait_for_world(2).keys() == {0, 2}
        job.wait_for_text(r"worker 3 on localhost is ready after \S+ s; it waits in reserve")
        said = job.finish()
    assert re.search(r"generation 2: worker 1 on localhost was killed by SIGKILL; 2 workers go on", said)
    assert "generation 3" not in said


def test_two_workers_are_killed_at_once(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "4", "--min-np", "2") as job:
        pids = job.wait_for_world(4)
        for worker in (0, 2):
            os.kill(pids[worker], signal.SIGKILL)
        job.wait_for_line(r"horovodrun: generation \d+: .*; 2 workers go on", "stderr")
        job.wait_for_world(4)
        job.finish()


def test_a_frozen_worker_is_replaced(tmp_path: Path) -> None:
    env = {"HOROVOD_FROZEN_TIMEOUT_SECONDS": "1.5"}
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "1", env=env) as job:
        os.kill(job.wait_for_world(3)[1], signal.SIGSTOP)
        job.wait_for_world(2)
        job.wait_for_world(3)
        assert "worker 1 on localhost was stopped by SIGSTOP and not continued" in job.finish()


def test_a_survivor_that_is_long_in_its_own_code_is_asked_where(tmp_path: Path) -> None:
    act = (
        "if state.step == 10 and worker == 1:\n"
        "    open('busy', 'w').close()\n"
        "    while not os.path.exists('asked'): time.sleep(0.01)\n"
        "if state.step == 10 and worker == 2:\n"
        "    while not os.path.exists('busy'): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {"HOROVOD_ELASTIC_STRAGGLER_SECONDS": "20"}
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "1", act=act, env=env) as job:
        job.wait_for_world(3)
        job.wait_for_text(
            '(?s)horovodrun: worker 1, which the others wait for, is at:.*File "act", line 3, in <module>'
        )
        (job.directory / "asked").touch()
        job.wait_for_text("generation 2: worker 2 on localhost was killed by SIGKILL; ")
        job.finish()


def test_slots_come_and_go_and_nobody_is_rolled_back(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", hosts=f"{ONE}:2") as job:
        job.wait_for_world(2)
        job.set_hosts(f"{ONE}:3 {TWO}:1")
        job.wait_for_world(4)
        job.set_hosts(f"{ONE}:1 {TWO}:1")
        job.wait_for_world(2)
        said = job.finish()
    assert "survived" not in said
    (steps,) = re.findall(r"finished 0 \d+ \d+ (\d+) \1 True", said)
    assert int(steps) > 10


def test_a_host_is_removed_and_another_one_comes_before_the_next_world(tmp_path: Path) -> None:
    """horovod#3494: the survivor skipped the sync for which the newcomer waited."""
    slow = {"ACT": "time.sleep(2) if state.step == 10 else None"}
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", hosts=f"{ONE}:1 {TWO}:1", env=slow) as job:
        job.wait_for_world(2)
        job.set_hosts(f"{ONE}:1 {THREE}:1")
        entered = job.wait_for_line(r"enter (\d+) (\d+) 2 (\d+)", count=2)
        assert {int(found[1]) for found in entered} == {0, 2} and len({found[3] for found in entered}) == 1
        job.finish()


def test_a_host_whose_worker_failed_is_no_longer_used(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "4", "--min-np", "2", hosts=f"{ONE}:2 {TWO}:2") as job:
        os.kill(job.wait_for_world(4)[3], signal.SIGKILL)
        job.wait_for_world(2)
        assert re.search(rf"host {TWO} is no longer used: 1 worker failed there\nhint: --blacklist", job.finish())


def test_a_host_comes_back_after_its_cooldown(tmp_path: Path) -> None:
    cooldown = ["--blacklist-cooldown-range", "1", "2"]
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", *cooldown, hosts=f"{ONE}:1 {TWO}:1") as job:
        os.kill(job.wait_for_world(2)[1], signal.SIGKILL)
        job.wait_for_world(1)
        job.wait_for_world(2)
        job.finish()


# One pass through each of the first two for each world; those through the others are inside of the script's.
FAULTS = [("rendezvous@2", "shm"), ("attach@2", "shm"), ("shutdown", "shm"), ("shm@700", "shm")]
FAULTS += [("count@40", "shm"), ("append@4", "shm"), ("rendezvous@2", "tcp"), ("shutdown", "tcp"), ("tcp@300", "tcp")]


# Daily every second moment, with one of the two.
LOSSES = [
    pytest.param(*fault, action, victim, marks=[] if (action, victim) == daily else pytest.mark.thorough)
    for fault, daily in zip(FAULTS, itertools.cycle([("kill", 0), None, ("kill", 2), None]))
    for action in ("kill", "stop")
    for victim in (0, 2)
]


@pytest.mark.parametrize(("point", "transport", "action", "victim"), LOSSES)
def test_a_worker_is_lost_at_any_moment(tmp_path: Path, point: str, transport: str, action: str, victim: int) -> None:
    """While a fourth worker joins, or at a collective."""
    env = {
        "FAULT": f"{victim} {point}:{action}",
        "HOROVOD_ELASTIC_BLAME": "worker",
        "HOROVOD_FROZEN_TIMEOUT_SECONDS": "1.5",
        "HOROVOD_TRANSPORT": transport,
    }
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "1", hosts=f"{ONE}:3", env=env) as job:
        job.wait_for_world(3)
        job.set_hosts(f"{ONE}:4")
        job.wait_for_line(r"horovod: fault point \w+: ", "stderr")
        while victim in job.wait_for_world(4):
            pass
        said = job.finish()
    assert f"worker {victim} on localhost was " in said


def test_an_exception_in_one_worker_is_a_loss(tmp_path: Path) -> None:
    act = "if worker == 1 and state.step == 20: raise RuntimeError('out of luck')"
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "1", act=act) as job:
        job.wait_for_world(3)
        job.wait_for_world(2)
        job.wait_for_world(3)
        assert "worker 1 on localhost exited with code 1" in job.finish()


def failed(
    tmp_path: Path, *flags: str, act: str = "", env: dict[str, str] | None = None, script: str = "", code: int = 1
) -> str:
    """What was said on stderr by a job that must fail, with this exit code."""
    more = {"script": script} if script else {}
    with ElasticJob(tmp_path, *flags, act=act, env=env, **more) as job:
        done = job.wait()
        assert done.code == code, job.shown()
        return done.stderr


def test_the_same_exception_everywhere_ends_the_job_with_its_text(tmp_path: Path) -> None:
    said = failed(tmp_path, "-np", "3", "--min-np", "1", act="if state.step == 5: raise KeyError('a bad sample')")
    assert re.search(r"raised the same exception at the same place of the training: KeyError: 'a bad sample' at ", said)
    assert re.search(r"(?m)^\[[\d-]+\]<stderr>:KeyError: 'a bad sample'$", said), "the end of a traceback"
    assert said.endswith("more: horovodrun --explain elastic-script\n")


def test_the_exit_code_is_that_of_the_workers_that_raise_the_same(tmp_path: Path) -> None:
    caught = "try:\n    run_fn(train, None)(state)\nexcept ValueError:\n    time.sleep(0.5)\n    sys.exit(7)\n"
    script = SCRIPT.replace("run_fn(train, None)(state)\n", caught)
    act = "if state.step == 5: raise ValueError('bad')"
    said = failed(tmp_path, "-np", "2", "--min-np", "1", act=act, script=script, code=7)
    assert said.endswith("more: horovodrun --explain elastic-script\n")


def test_a_process_that_stays_after_the_training_is_spoken_of(tmp_path: Path) -> None:
    act = (
        "if state.step == 0 and worker == 1:\n"
        "    import threading\n"
        "    def stay():\n"
        "        while not os.path.exists('go'): time.sleep(0.05)\n"
        "    threading.Thread(target=stay).start()\n"
    )
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", act=act) as job:
        job.wait_for_world(2)
        (job.directory / "end").touch()
        job.wait_for_text(r"the training has ended; waiting for the end of the processes of workers 1 \(pid \d+\)")
        (job.directory / "go").touch()
        job.finish()


@pytest.mark.parametrize("np", [1, 2])  # one is the only holder of the state
def test_no_worker_is_ended_if_all_stand_still(tmp_path: Path, np: int) -> None:
    env = {"HOROVOD_FROZEN_TIMEOUT_SECONDS": "1.5"}
    with ElasticJob(tmp_path, "-np", str(np), "--min-np", "1", env=env) as job:
        pids = job.wait_for_world(np).values()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        job.wait_for_text("was stopped by SIGSTOP; the job waits for it")
        time.sleep(2.5)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.5)  # a person is not quicker
        said = job.finish()
    assert "was killed" not in said and "and not continued" not in said


def test_a_script_that_cannot_start_ends_the_job(tmp_path: Path) -> None:
    said = failed(tmp_path, "-np", "2", "--min-np", "1", script="import no_such_module\n")
    assert "ModuleNotFoundError: No module named 'no_such_module'" in said
    # More than two, if one of the two is slow: the other's slot is filled again meanwhile.
    failure = r"worker . on localhost exited with code 1 \(ModuleNotFoundError: No module named 'no_such_module'\)"
    assert re.search(
        rf"horovodrun: the elastic job has ended: no worker has got to hvd.init\(\): {failure}( and {failure})+\n"
        "more: horovodrun --explain elastic-no-host-left\n$",
        said,
    ), said


KILL_ALL = "if state.step == 5 and worker < 2: os.kill(os.getpid(), signal.SIGKILL)"


def test_when_all_are_lost_the_state_is(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1") as job:
        for pid in job.wait_for_world(2).values():
            os.kill(pid, signal.SIGKILL)
        done = job.wait()
    assert done.code == 128 + signal.SIGKILL
    assert re.search(
        "horovodrun: the elastic job has ended: "
        "(all workers have ended: worker . on localhost was killed by SIGKILL and worker . on localhost was killed by "
        "SIGKILL|every worker that held the state has ended: worker . on localhost was killed by SIGKILL)\n"
        "more: horovodrun --explain elastic-state-lost\n$",
        done.stderr,
    ), done.stderr  # the second text if the launcher sees one of the two ends before the other


def test_when_all_are_lost_the_job_may_start_afresh(tmp_path: Path) -> None:
    env = {"HOROVOD_ELASTIC_STATE_LOSS": "restart"}
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", act=KILL_ALL, env=env) as job:
        job.wait_for_world(2)
        (found,) = job.wait_for_line(r"enter (\d+) 0 \d 0 ")
        assert int(found[1]) == 2
        assert "no worker holds the state: all start over" in job.finish()


def test_too_few_slots_for_too_long_end_the_job(tmp_path: Path) -> None:
    flags = ["-np", "2", "--min-np", "2", "-H", f"{ONE}:1,{TWO}:1", "--elastic-timeout", "1"]
    said = failed(tmp_path, *flags, act="if worker == 1 and state.step == 5: os._exit(7)", code=7)
    assert "it waited too long for 1 more slot: 1 can be used, 2 needed (--min-np)\n" in said
    assert said.endswith("more: horovodrun --explain elastic-too-few-slots\n")


def test_the_reset_limit_ends_the_job(tmp_path: Path) -> None:
    act = "if hvd.rank() == 1 and state.step % 10 == 9: os._exit(7)"
    said = failed(tmp_path, "-np", "2", "--min-np", "1", "--reset-limit", "1", act=act)
    assert said.endswith("more: horovodrun --explain elastic-reset-limit\n")


def test_a_joiner_that_calls_an_operation_too_early_hears_why(tmp_path: Path) -> None:
    script = (
        "import os, time\nimport numpy as np\nimport horovod.core as hvd\nimport horovod.elastic.worker.wrapper\n"
        "hvd.init()\nprint('planned', hvd.rank(), hvd.size(), hvd.local_rank(), flush=True)\n"
        "hvd.allreduce(np.ones(3))\n"
        "if hvd.rank() == 0: open('summed', 'w').close()\n"
        "while not os.path.exists('summed'): time.sleep(0.01)\n"
        "if hvd.rank() == 1: os._exit(7)\n"
        "while not os.path.exists('end'): time.sleep(0.1)\n"
    )
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", script=script) as job:
        job.wait_for_line(r"planned 1 2 1", count=2)
        job.wait_for_text("NotInitializedError: worker 2 joins a running job and is in no world yet")
        (tmp_path / "end").touch()
        job.wait()


def test_a_script_without_a_state_runs_as_in_any_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import numpy as np\nimport horovod.core as hvd\nimport horovod.elastic.worker.wrapper\nhvd.init()\n"
        "print('sum', hvd.allreduce(np.ones(3), op=hvd.Sum).tolist(), flush=True)\n"
    )
    done = run_job(tmp_path, "-np", "2", "--min-np", "1", [sys.executable, "train.py"])
    assert done.code == 0 and done.stdout.count("sum [2.0, 2.0, 2.0]") == 2, done.stderr


def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "1") as job:
        job.wait_for_world(3)
        job.process.send_signal(signal.SIGINT)
        assert job.wait().code == 130


def test_a_killed_launcher_takes_all_with_it(tmp_path: Path) -> None:
    with ElasticJob(tmp_path, "-np", "3", "--min-np", "1") as job:
        job.wait_for_world(3)
        job.process.kill()
        job.assert_gone()
