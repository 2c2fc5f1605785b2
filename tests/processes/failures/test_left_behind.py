# SPDX-License-Identifier: Apache-2.0
"""Ranks that would stay for ever: a thread outlives the script's error, or the launcher was killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import python, run_job
from support.patience import LIMIT_S, Patience, wait_until
from support.ports import open_files
from support.started import Folder, end_of, environment, mpi, srun

RAISES = (
    "import threading, time, numpy as np, horovod.core as hvd; hvd.init()\n"
    "threading.Thread(target={target}, name='writer').start()\n"
    "if hvd.rank() == 1: raise ValueError('a bad sample')\n"
    "{then}"
)
STAYS = RAISES.format(target="threading.Event().wait", then="hvd.allreduce(np.ones(3), name='x')\n")
SOON = {"HOROVOD_RAISED_GRACE_SECONDS": "0.3"}
CAUSE = "rank 1 raised ValueError: a bad sample; it was ended, since its threads kept it alive for 0.3 s (writer)"


def test_a_rank_that_raised_ends_though_a_thread_lives(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "2", python(STAYS), env=SOON)
    last = done.stderr[done.stderr.rindex("\nhorovodrun: rank 1 on host localhost") :]
    assert done.code == 1 and CAUSE in last, done
    assert f"AbortedError: `allreduce.x` failed: {CAUSE}" in done.stderr, done


def test_ranks_of_other_launchers_are_told_whose_thread_lived(tmp_path: Path) -> None:
    ends = end_of(srun(Folder(tmp_path), ["-c", STAYS], env={**SOON, "HOROVOD_PRETEND_HOSTS": "2,2"}))
    assert [code for code, _ in ends] == [1] * 4 and all(CAUSE in text for _, text in ends), ends


def test_a_thread_may_end_its_work_after_an_error_and_without_one(tmp_path: Path) -> None:
    """Half a second of it; the limit is for rank 1 alone, which has raised."""
    finish = "lambda: (threading.main_thread().join(), time.sleep(0.5), print('written', flush=True))"
    code = RAISES.format(target=finish, then="")
    done = run_job(tmp_path, "-np", "2", python(code), env={"HOROVOD_RAISED_GRACE_SECONDS": "60"})
    assert done.code == 1 and done.stdout.count("written") >= 1 and "alive" not in done.stderr, done
    alone = RAISES.format(target=finish, then="").replace("== 1", "== 7")
    done = run_job(tmp_path, "-np", "2", python(alone), env={"HOROVOD_RAISED_GRACE_SECONDS": "0.1"})
    assert done.code == 0 and done.stdout.count("written") == 2, done


WAITS = "import os, horovod.core as hvd; os.write(1, b'%d\\n' % os.getpid()); hvd.init()"


def ends_within(descriptor: int, seconds: float) -> bool:
    return bool(Patience(seconds).ask(lambda left_s: select.select([descriptor], [], [], left_s)[0]))


@pytest.mark.parametrize(
    ("wrapper", "victim", "then", "ends"),
    [
        ("exec {rank}", "launcher", {}, True),
        ("{rank} & wait", "launcher", {}, True),
        ("{rank} & wait", "wrapper", {}, False),
        ("exec {rank}", "launcher", {"HOROVOD_END_WITH_LAUNCHER": "0"}, False),
    ],
)
def test_a_rank_ends_with_its_launcher(
    tmp_path: Path, wrapper: str, victim: str, then: dict[str, str], ends: bool
) -> None:
    """One of two, which waits for the other in init. Without its wrapper it was put into the background on purpose."""
    variables = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", **then}
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    line = wrapper.format(rank=f'"$PYTHON" -c "{WAITS}"')
    (tmp_path / "rank.sh").write_text(line)
    launcher = subprocess.Popen(
        ["sh", "-c", f"env {words} sh rank.sh & echo $!; wait; read line"],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(tmp_path, PYTHON=sys.executable),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert launcher.stdout is not None
    wrapper_pid, rank_pid = int(launcher.stdout.readline()), int(launcher.stdout.readline())
    rank = os.pidfd_open(rank_pid)
    try:
        wait_until(lambda: then or watches(rank_pid))
        os.kill(launcher.pid if victim == "launcher" else wrapper_pid, signal.SIGKILL)
        assert ends_within(rank, LIMIT_S if ends else 1.5) is ends
    finally:
        signal.pidfd_send_signal(rank, signal.SIGKILL) if not ends_within(rank, 0) else None
        os.close(rank)
        launcher.kill()
        launcher.communicate()


def watches(pid: int) -> bool:
    """Whether it waits for the ends of other processes."""
    return any("pidfd" in name for name in open_files(f"/proc/{pid}"))


@pytest.mark.parametrize("name", ["openmpi", pytest.param("torchrun", marks=pytest.mark.thorough)])
def test_no_rank_outlives_a_launcher_that_was_killed(tmp_path: Path, name: str) -> None:
    code = (
        "import os, time, numpy as np, horovod.core as hvd; hvd.init(); os.write(1, b'%d\\n' % os.getpid())\n"
        "while True: hvd.allreduce(np.ones(3), name='x'); time.sleep(0.01)"
    )
    (tmp_path / "train.py").write_text(code)
    if name == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    else:
        mpirun, its_python = mpi(name)
        command = [*mpirun, "-np", "2", its_python, "train.py"]
    launcher = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert launcher.stdout is not None
    ranks = [os.pidfd_open(int(launcher.stdout.readline())) for _ in range(2)]
    launcher.kill()
    launcher.communicate()
    ended = [ends_within(rank, LIMIT_S) for rank in ranks]
    for rank in ranks:
        os.close(rank)
    assert ended == [True, True]
