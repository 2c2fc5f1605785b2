# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs in which one worker is at fault, or told to leave: the others go on, and nobody is ended too early."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from support.elastic.elastic_jobs import SCRIPT, ElasticJob
from support.extent import SLACK_S

from horovod.launcher.host.lines import GREETING, line
from horovod.launcher.placement.remote import REMOTE_AGENT_COMMAND

ONE, TWO = "localhost", "127.0.0.1"
BLAME_WORKER = {"HOROVOD_ELASTIC_BLAME": "worker"}

# What the first worker that joins does before hvd.init(). The one after it is well.
OTHER_THRESHOLD = 'os.environ["HOROVOD_FUSION_THRESHOLD"] = "1"'
NO_MEMORY = """
import atexit
from horovod.core.context import Context, StartError
def no_memory(self, settings):
    raise StartError("no memory", "start-resources")
Context._start = no_memory
atexit.register(time.sleep, 2)  # a large framework, too, takes long to end
"""
OTHER_SHAPE = "length = 999"
KILLED_IN_INIT = """
from horovod.core import basics
basics.register_set = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
OWN_STATE = """
class Own(ObjectState):
    def sync(self):
        hvd.broadcast(np.zeros(length), 0, name="of this length")
        super().sync()

state = Own("""


DEAF = """
    def on_hosts_updated(self, timestamp, update_res):
        if worker == 1:
            raise RuntimeError("deaf")
        super().on_hosts_updated(timestamp, update_res)
"""


def script_with(fault: str) -> str:
    fault = f"length = 1000\nif worker == 1:\n{textwrap.indent(fault, '    ')}\nact = compile("
    text = SCRIPT.replace("act = compile(", fault).replace("state = ObjectState(", OWN_STATE)
    return text.replace("hvd.init()", "first = hvd.ProcessSet([0])\nhvd.init(process_sets=[first])")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (OTHER_THRESHOLD, "worker 1 on localhost exited with code 1"),
        (NO_MEMORY, "worker 1 on localhost exited with code 1"),
        (OTHER_SHAPE, "worker 1 cannot join, for its state differs: "),
        (KILLED_IN_INIT, "worker 1 on localhost was killed by SIGKILL"),
    ],
)
def test_a_worker_that_cannot_join_ends_alone(tmp_path: Path, fault: str, said: str) -> None:
    """A process set that all ranks of a world are in goes on, too."""
    options: dict[str, Any] = {"script": script_with(fault), "hosts": f"{ONE}:1", "env": BLAME_WORKER}
    act = "first.included() and hvd.allreduce(np.ones(1), name='of the set', process_set=first)"
    with ElasticJob(tmp_path, "-np", "1", "--min-np", "1", act=act, **options) as job:
        job.wait_for_world(1)
        job.set_hosts(f"{ONE}:2")
        assert set(job.wait_for_world(2)) == {0, 2}
        assert said in job.finish()


def test_what_makes_every_start_fail_ends_the_job(tmp_path: Path) -> None:
    env = {"HOROVOD_TRANSPORT": "shm"}
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", hosts=f"{ONE}:1 {TWO}:1", env=env) as job:
        done = job.wait()
    assert done.code == 1, job.shown()
    assert re.search(r"horovod: warning: generation 1 did not form: .*HOROVOD_TRANSPORT=shm", done.stderr), job.shown()


def test_a_worker_that_is_removed_comes_to_its_end(tmp_path: Path) -> None:
    last = (
        "try:\n    run_fn(train, None)(state)\nfinally:\n    time.sleep(0.5)\n    print('left', worker, flush=True)\n"
    )
    text = SCRIPT.replace("run_fn(train, None)(state)\n", last)
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", hosts=f"{ONE}:2", script=text) as job:
        job.wait_for_world(2)
        job.set_hosts(f"{ONE}:1")
        job.wait_for_line("left 1")
        job.finish()


def test_a_worker_that_cannot_hear_of_changes_ends(tmp_path: Path) -> None:
    """Or the others would wait for it without end."""
    text = SCRIPT.replace("state = ObjectState(", "class Own(ObjectState):\n" + DEAF + "\nstate = Own(")
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", script=text, hosts=f"{ONE}:2", env=BLAME_WORKER) as job:
        job.wait_for_world(2)
        job.set_hosts(f"{ONE}:3")
        job.wait_for_world(3)
        said = job.finish()
    assert "worker 1 on localhost exited with code 1" in said and "RuntimeError: deaf" in said


def test_a_timeline_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    (tmp_path / "timeline.2.json").mkdir()
    env = {"HOROVOD_TIMELINE": str(tmp_path / "timeline.json")}
    with ElasticJob(tmp_path, "-np", "1", "--min-np", "1", hosts=f"{ONE}:1", env=env) as job:
        job.wait_for_world(1)
        job.set_hosts(f"{ONE}:2")
        job.wait_for_world(2)
        assert "horovod: warning: generation 2 has no timeline: " in job.finish()


def test_after_the_training_nothing_is_elastic_and_nobody_leaves_unseen(tmp_path: Path) -> None:
    again = (
        "def again(state):\n"
        "    for step in range(100):\n"
        "        if worker == 1 and step == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        hvd.allreduce(np.ones(3), name='again')\n"
        "        time.sleep(0.01)\n"
        "    print('all done', flush=True)\n\n"
        "run_fn(again, None)(ObjectState(broadcast_object, hvd.rank, x=1))\n"
    )
    (tmp_path / "end").touch()
    with ElasticJob(tmp_path, "-np", "2", "--min-np", "1", script=SCRIPT + again) as job:
        done = job.wait()
    assert done.code != 0 and "all done" not in done.stdout, job.shown()
    assert "the elastic training of this job has ended: what runs now is not elastic" in done.stderr
    assert re.search("RankLostError: (rank 0, )?`allreduce.again`( failed)?: rank 1 ", done.stderr), done.stderr


def test_workers_of_another_machine_end_at_once_if_the_launcher_is_out_of_reach(tmp_path: Path) -> None:
    """It may still live, and give their ranks to others in a moment. They ignore SIGTERM, and have much time."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    question: dict[str, Any] = {"secret": "00" * 32, "directory": str(tmp_path), "path": os.environ["PATH"]}
    question.update(command="sh", addresses=[], port=0, silence_s=0.0, network_interface="", time_s=None, temporary="")
    job: dict[str, Any] = {"command": ["sh", "-c", "trap '' TERM; echo ready; sleep 1000"], "directory": str(tmp_path)}
    job.update(environment=environment, own_environment=[], ranks={"common": {}, "own": [], "ranks": []})
    job.update(stays=True, slots=1, grace_s=100.0, address=None)
    agent = subprocess.Popen(
        REMOTE_AGENT_COMMAND,
        env={**environment, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert agent.stdin is not None and agent.stdout is not None
    agent.stdin.write(line(order="prepare", **question) + line(order="start", **job))
    agent.stdin.write(line(order="start_rank", rank=3, environment={}))
    agent.stdin.flush()
    while agent.stdout.readline() != GREETING.splitlines(keepends=True)[-1]:
        pass
    while json.loads(agent.stdout.readline()).get("text") != "ready\n":
        pass
    begin = time.monotonic()
    agent.stdin.close()
    agent.stdout.read()
    agent.wait()
    assert time.monotonic() - begin < 2.0 + SLACK_S
