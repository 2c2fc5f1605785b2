# SPDX-License-Identifier: Apache-2.0
"""horovod.run of an elastic job: whose results it gives, and whose exception it raises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import our_environment

from horovod.launcher.function.answers import those_that_count
from horovod.launcher.function.run_task import Answer
from horovod.launcher.job.supervision import Conclusion

RUN = """
import atexit, os, signal, sys, time
import horovod
import horovod.core as hvd
from horovod.core.objects import broadcast_object
from horovod.elastic.state.state import ObjectState
from horovod.elastic.worker.wrapper import run_fn

class Boom(Exception):
    pass

def train(steps):
    known = Boom, atexit, signal, sys  # only what a function names travels with it
    worker = int(os.environ["HOROVOD_ELASTIC_WORKER"])
    exec(os.environ["BEFORE"])
    hvd.init()
    state = ObjectState(broadcast_object, hvd.rank, step=0)

    def loop(state):
        while state.step < steps:
            exec(os.environ["ACT"], {"os": os, "worker": worker, "state": state})
            state.step += 1
            state.commit()
            time.sleep(0.05)
        return hvd.rank(), hvd.size(), state.step

    result = run_fn(loop, None)(state)
    exec(os.environ["AFTER"])
    return result

if __name__ == "__main__":
    try:
        print(horovod.run(train, (40,), np=2, min_np=1, max_np=2))
    except Exception as error:
        print("raised", repr(error))
"""


def call_run(folder: Path, act: str = "", before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    """Runs horovod.run with a function that acts before each of its steps, and before and after its training.

    `act` may use os, worker and state, the others what RUN imports, and worker.
    """
    (folder / "run.py").write_text(RUN)
    environment = our_environment(OMP_NUM_THREADS="1")
    return subprocess.run(
        [sys.executable, "run.py"],
        cwd=folder,
        env={**environment, "ACT": act, "BEFORE": before, "AFTER": after},
        capture_output=True,
        text=True,
    )


def test_horovod_run_gives_the_results_of_the_last_world(tmp_path: Path) -> None:
    done = call_run(tmp_path, "if state.step == 5 and worker == 1: os.kill(os.getpid(), 9)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("[(0, 2, 40), (1, 2, 40)]", "[(0, 1, 40)]"), done.stdout
    assert "1 loss survived: worker 1 on localhost was killed by SIGKILL" in done.stderr


def test_horovod_run_raises_what_has_ended_the_job_and_not_what_it_survived(tmp_path: Path) -> None:
    survived = "if state.step == 3 and worker == 1: raise KeyError('survived')\n"
    done = call_run(tmp_path, survived + "if state.step == 20: os.kill(os.getpid(), 9)")
    raised, _, last = done.stdout.partition("horovod.run: the job ended with exit code 137\\n")
    assert raised.startswith("raised RuntimeError("), done.stdout + done.stderr
    assert "held the state has ended: worker 0 on localhost was killed by SIGKILL" in last, done.stdout + done.stderr


def test_horovod_run_raises_the_error_that_comes_again_at_the_same_place(tmp_path: Path) -> None:
    done = call_run(tmp_path, "if state.step == 3: raise KeyError('bad sample')")
    assert done.stdout.splitlines()[-1] == "raised KeyError('bad sample')", done.stderr


@pytest.mark.parametrize(
    ("before", "raised"),
    [
        (r"raise ValueError('bad\nhint: another')", r"ValueError('bad\nhint: another')"),
        ("hvd.size()", "NotInitializedError("),
        ("assert worker > 100", "AssertionError()"),
        ("hvd.init(); raise Boom('before the training')", "Boom('before the training')"),
    ],
)
def test_horovod_run_raises_the_error_that_comes_before_the_training(tmp_path: Path, before: str, raised: str) -> None:
    done = call_run(tmp_path, before=f"atexit.register(print, 'the end', file=sys.stderr)\n{before}")
    assert done.stdout.splitlines()[-1].startswith(f"raised {raised}"), done.stdout + done.stderr


def test_horovod_run_gives_the_results_if_a_worker_crashes_at_its_end(tmp_path: Path) -> None:
    done = call_run(tmp_path, before="if worker == 1: atexit.register(os.kill, os.getpid(), signal.SIGSEGV)")
    assert done.stdout.splitlines()[-1] == "[(0, 2, 40), (1, 2, 40)]", done.stdout + done.stderr
    assert "horovod.run: all ranks gave results, but the job ended with exit code 139" in done.stderr


def test_horovod_run_names_the_rank_that_gives_no_result_after_the_training(tmp_path: Path) -> None:
    done = call_run(tmp_path, after="if worker == 1: os._exit(9)")
    text = "horovod.run: the job ended with exit code 9; no result from rank 1\\n"
    assert f"raised RuntimeError('{text}" in done.stdout.splitlines()[-1], done.stdout + done.stderr


def test_whose_answers_count() -> None:
    lost, first, second = (Answer(rank, value=rank, worker=worker) for rank, worker in ((0, 1), (0, 2), (1, 0)))
    error = Answer(1, error=ValueError("bad"), worker=3)
    assert those_that_count([first, second, None], 139, Conclusion("", True, (0, 2))) == [first, second]
    assert those_that_count([lost, second, error], 1, Conclusion("", True, (0, 2))) == [None, second]
    assert those_that_count([first, error], 1, Conclusion("", False, (3,))) == [error]
    for ended in (Conclusion("survived", False, (5,)), Conclusion("not started"), Conclusion()):
        with pytest.raises(RuntimeError, match=f"the job ended with exit code 143\n{ended.text}"):
            those_that_count([first, error, None], 143, ended)
