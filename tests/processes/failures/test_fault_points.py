# SPDX-License-Identifier: Apache-2.0
"""Every way to end or stop a process at every named moment of a job, DataLoader workers alive.

A case is (point, what happens, victim, transport). The job ends in time; every survivor's stderr and the last words on
the terminal name the cause; processes, shared memory, temporary files and ports are as before. A point that the victim
never reaches is a failure of the test (the hook says when it is reached), not a pass.

All cases take minutes. By default a sixth of them runs, and eight whose moment is chosen as well, all by the seed
HVD_FAULT_SEED, which is printed. THOROUGH=1 runs every case.
"""

from __future__ import annotations

import dataclasses
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.extent import SLACK_S, THOROUGH
from support.jobs import Done, Job, abreast, stderr_of
from support.patience import wait_until
from support.ports import assert_closed

SIZE = 3
# From the moment itself to the end of everything: noticed, and ended 3 s later. A lone stop is noticed after 4 s on one
# host and after 6 s over TCP.
NOTICED_S = {"kill": 0.5, "exit3": 0.5, "exit0": 0.5, "stop": 4.0}
TCP_STOP_NOTICED_S = 6.0
ENDED_S = 3.0
LAUNCHER_KILLED_S = 3.0

SEED = int(os.environ.get("HVD_FAULT_SEED", "1"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short name: below it lie the workers' sockets, whose paths have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="f") as name:
        yield Path(name)


@dataclasses.dataclass(frozen=True)
class Case:
    point: str
    action: str
    victim: str  # "first", "last", "launcher"
    transport: str
    nth: int = 1

    @property
    def rank(self) -> int:
        """Whose pass through the point it is."""
        return 0 if self.victim == "first" else SIZE - 1

    def __str__(self) -> str:
        return f"{self.point}@{self.nth}-{self.action}-{self.victim}-{self.transport}"


def all_cases() -> list[Case]:
    points = [(point, "shm") for point in ("rendezvous", "attach", "count", "append", "shm", "shutdown")]
    points += [("rendezvous", "tcp"), ("attach", "tcp"), ("tcp", "tcp"), ("shutdown", "tcp")]
    # Starting measures the machine with collectives of its own: later passes are inside of the script's.
    nth = {"shm": 240, "tcp": 5}
    cases = []
    for point, transport in points:
        for action in NOTICED_S:
            cases += [Case(point, action, victim, transport, nth.get(point, 1)) for victim in ("first", "last")]
        cases += [Case(point, action, "launcher", transport, nth.get(point, 1)) for action in ("kill", "stop")]
    return cases


def chosen() -> list[Case]:
    cases = all_cases()
    if THOROUGH:
        return cases
    return random.Random(SEED).sample(cases, len(cases) // 6)


def random_cases() -> list[Case]:
    source = random.Random(SEED + 1)
    cases = [case for case in all_cases() if case.point in ("count", "append", "shm", "tcp")]
    limit = {"count": 40, "append": 40, "shm": 400, "tcp": 400}
    return [
        dataclasses.replace(case, nth=source.randint(1, limit[case.point]))
        for case in (source.choice(cases) for _ in range(20 if THOROUGH else 4))
    ]


# The victim's delay makes it the last to arrive, so that it passes between count and append.
SCRIPT = """
import os, sys, tempfile, time
rank, victim, target = int(os.environ["HOROVOD_RANK"]), int(os.environ["VICTIM"]), os.environ["TARGET"]
spec = os.environ["SPEC"]
if rank == victim:
    if target == "launcher":
        with open(f"/proc/{os.getppid()}/stat") as file:
            spec += "=" + file.read().rpartition(")")[2].split()[1]
    os.environ["HOROVOD_FAULT_POINT"] = spec
import numpy as np
import horovod.core as hvd
from horovod.world import links
WORKERS
# The ports of this job, for a look after its end: the rendezvous', and this rank's own where there is one.
with open("ports", "a") as file:
    file.write(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] + "\\n")
def opened(mesh, *arguments, make=links.Mesh.__init__):
    make(mesh, *arguments)
    with open("ports", "a") as file:
        file.write(f"{mesh.port}\\n")
links.Mesh.__init__ = opened
ABREAST
hvd.init()
small, large = np.ones(3, np.float32), np.ones(300_003, np.float32)
for step in range(20 if spec.startswith("shutdown") else 10**9):
    if rank == victim and step > 0:
        time.sleep(0.001)
    handles = [hvd.allreduce_async(tensor, name=str(tensor.size)) for tensor in (small, large)]
    for handle in handles:
        hvd.synchronize(handle)
    if hvd.allreduce(np.array([float(os.path.exists("resumed"))]), name="resumed", op=hvd.Max)[0]:
        break
if rank != victim and target != "launcher":
    hvd.allreduce(small, name="the victim is shutting down")
"""
# As a DataLoader keeps them: forked, with a listening socket in multiprocessing's temporary folder, and a grandchild.
WORKERS = """
import multiprocessing, multiprocessing.connection, subprocess
def work(started):
    listener = multiprocessing.connection.Listener(family="AF_UNIX")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    started.set()
    child.wait()
context = multiprocessing.get_context("fork")
for _ in range(2):
    started = context.Event()
    context.Process(target=work, args=(started,), daemon=True).start()
    assert started.wait(100)
"""


def run_case(tmp_path: Path, case: Case) -> tuple[Done, float, float]:
    """What the job said, when the point was reached, and when everything had ended (both on the monotonic clock)."""
    script = tmp_path / "train.py"
    # On a busy machine the victim could end long before another rank has come to init, which then has nothing to say.
    script.write_text(SCRIPT.replace("WORKERS", WORKERS).replace("ABREAST", abreast(SIZE, tmp_path)))
    env = {
        "VICTIM": str(case.rank),
        "TARGET": "launcher" if case.victim == "launcher" else "self",
        "SPEC": f"{case.point}@{case.nth}:{case.action}",
        "HOROVOD_TRANSPORT": case.transport,
        "OMP_NUM_THREADS": "1",
    }
    with Job(tmp_path, "-np", str(SIZE), [sys.executable, str(script)], env=env) as job:
        if case.victim == "launcher" and case.action == "stop":
            os.waitid(os.P_PID, job.process.pid, os.WSTOPPED)
            reached = time.monotonic()
            wait_until_all_are_stopped(job)
            (tmp_path / "resumed").touch()
            os.kill(job.process.pid, signal.SIGCONT)
            return job.wait(), reached, time.monotonic()
        if case.victim == "launcher":  # nobody is left to pass on the line that says so
            os.waitid(os.P_PID, job.process.pid, os.WEXITED | os.WNOWAIT)
            reached = time.monotonic()
        done = job.wait()
        job.assert_gone(within_s=8 + SLACK_S)
        ended = time.monotonic()
        if case.victim == "launcher":
            return done, reached, ended
        match = re.search(r"horovod: fault point \S+: \w+ of process \d+ at ([0-9.]+)", done.stderr)
        assert match is not None, f"{case.point} was never reached\n{done.stderr}"
        return done, float(match[1]), ended


def wait_until_all_are_stopped(job: Job) -> None:
    def running() -> list[int]:
        ranks = [pid for pid, command in job.pids().items() if "train.py" in command]
        return [pid for pid in ranks if state(pid) not in ("T", "Z", "")]

    wait_until(lambda: not running(), lambda: f"not suspended with the launcher: {running()}", 8 + SLACK_S)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def check(case: Case, tmp_path: Path) -> None:
    print(f"HVD_FAULT_SEED={SEED}, case {case}")
    done, reached, ended = run_case(tmp_path, case)
    text = f"{case}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    ports = tmp_path / "ports"
    assert_closed(ports.read_text().split(), tmp_path, text)
    if case.victim == "launcher":
        check_launcher(case, done, text)
        assert case.action == "stop" or ended - reached < LAUNCHER_KILLED_S + SLACK_S, (
            f"took {ended - reached:.1f} s\n{text}"
        )
        return
    noticed_s = TCP_STOP_NOTICED_S if (case.action, case.transport) == ("stop", "tcp") else NOTICED_S[case.action]
    assert ended - reached < noticed_s + ENDED_S + SLACK_S, f"took {ended - reached:.1f} s\n{text}"
    for rank in set(range(SIZE)) - {case.rank}:
        said = stderr_of(rank, done.stderr)
        assert re.search(rf"Error: .*rank {case.rank} ", said), f"rank {rank} does not name the cause\n{text}"
    words = done.stderr[done.stderr.rindex("\nhorovodrun: ") + 1 :]
    how = {
        "kill": "was killed by SIGKILL",
        "exit3": "exited with code 3",
        "exit0": "exited with code 0 while other ranks still waited for it",
        "stop": "was stopped by SIGSTOP and not continued",
    }[case.action]
    assert words.startswith(f"horovodrun: rank {case.rank} on host localhost {how}"), text
    assert not re.search(r"^\[\d+\]<", words, re.MULTILINE), f"the cause is not the last word\n{text}"
    assert done.code == {"kill": 137, "exit3": 3}.get(case.action, done.code) != 0, text


def check_launcher(case: Case, done: Done, text: str) -> None:
    if case.action == "stop":  # the whole job was suspended, and went on
        assert done.code == 0, text
        assert "Error" not in done.stderr and "was stopped" not in done.stderr, text
        return
    assert done.code == -signal.SIGKILL, text
    assert re.search(
        r"horovodrun: the launcher \(process \d+\) was killed; all ranks have been ended\n\Z", done.stderr
    ), text


@pytest.mark.slow("a job for each of many moments")
@pytest.mark.parametrize("case", [*chosen(), *random_cases()], ids=str)
def test_a_job_ends_as_promised_whatever_happens_at_a_named_or_a_random_moment(case: Case, folder: Path) -> None:
    check(case, folder)


def test_an_unknown_fault_is_an_error_and_no_silence(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text("import horovod.core as hvd\nhvd.init()\n")
    env = {"HOROVOD_FAULT_POINT": "append:explode"}
    with Job(folder, "-np", "1", [sys.executable, str(script)], env=env) as job:
        done = job.wait()
    assert done.code == 1 and "setting `fault_point` cannot be `append:explode`" in done.stderr
