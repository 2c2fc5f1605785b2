# SPDX-License-Identifier: Apache-2.0
"""A collective that one rank does not call is named on stderr after the stall time; where it comes late, no harm."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support.extent import SLACK_S, later
from support.jobs import Job, stderr_of

# Rank 1 comes when the test says so. Forty tensors, some with names that nobody wants on a terminal, one without.
SCRIPT = """
import os
import numpy as np
import horovod.core as hvd
hvd.init()
rank = hvd.rank()
names = ["first"] + [f"layer.{i}\\n" + "x" * 3000 for i in range(39)]
def start():
    handles = [hvd.allreduce_async(np.full(3, rank + 1.0), name=name, op=hvd.Sum) for name in names]
    return [*handles, hvd.allreduce_async(np.full(3, rank + 1.0), op=hvd.Sum)]
for handle in start():
    hvd.synchronize(handle)
for round in range(2):
    if rank == 1:
        os.read(os.open(f"go{round}", os.O_RDONLY), 1)
    for handle in start():
        assert hvd.synchronize(handle).tolist() == [3.0] * 3
    print("round", round, flush=True)
"""


def stalled(folder: Path, ranks: int, script: str, seconds: float, *gates: str, **env: str) -> Job:
    """A job of train.py, with pipes that hold back who reads them until `let_go`."""
    (folder / "train.py").write_text(script)
    for gate in gates or ("go",):
        os.mkfifo(folder / gate)
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": str(seconds), **env}
    return Job(folder, "-np", str(ranks), [sys.executable, "train.py"], env=env)


def let_go(folder: Path, gate: str = "go") -> None:
    os.close(os.open(folder / gate, os.O_WRONLY))


NAME = r"(unnamed allreduce|`[^`]+`( \(\d+ bytes\))?)"


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_stall_is_one_report_that_names_the_missing_rank_and_the_job_goes_on(tmp_path: Path, transport: str) -> None:
    with stalled(tmp_path, 2, SCRIPT, 1, "go0", "go1", HOROVOD_TRANSPORT=transport) as job:
        for round in range(2):
            (match,) = job.wait_for_line(r"horovod: warning: stall: (.*)", "stderr")
            text = match[1]
            assert re.match(rf"rank 0 waited \d+\.\d s for {NAME}(, {NAME}){{9}} and 31 more: ", text), text
            assert text.endswith(": missing rank 1, which did not call them"), text
            assert "`allreduce.first`" in text or round == 1, text
            assert len(text) < 2500, text
            assert "\\nxxx" in text and "bytes)" in text, text
            let_go(tmp_path, f"go{round}")
            job.wait_for_line(f"round {round}", count=2)
        done = job.wait()
    assert done.code == 0, done.stderr
    assert done.stderr.count("warning: stall") <= 2 + done.seconds, done.stderr  # one report an interval, not 41


def test_an_unnamed_operation_is_shown_by_what_it_does(tmp_path: Path) -> None:
    script = (
        "import os\nimport numpy as np\nimport horovod.core as hvd\nhvd.init()\n"
        "for _ in range(64): hvd.allreduce(np.ones(3))\n"  # the broadcast takes the turn of the first one
        "if hvd.rank() == 1: os.read(os.open('go', os.O_RDONLY), 1)\n"
        "hvd.broadcast(np.ones(3), root_rank=0)\n"
    )
    with stalled(tmp_path, 2, script, 1) as job:
        job.wait_for_line(r"rank 0 waited \d+\.\d s for unnamed broadcast: missing rank 1, which did not", "stderr")
        let_go(tmp_path)
        assert job.wait().code == 0


def test_a_single_tensor_that_is_no_longer_named_is_one_tensor(tmp_path: Path) -> None:
    script = (
        "import os\nimport numpy as np\nimport horovod.core as hvd\nhvd.init()\n"
        "mine = ['both', *(f'only.{i}' for i in range(10))]\n"
        "if hvd.rank() == 2: os.read(os.open('go', os.O_RDONLY), 1)\n"
        "handles = [hvd.allreduce_async(np.ones(3), name=name) for name in mine[: 1 if hvd.rank() == 1 else 11]]\n"
        "if hvd.rank() == 1: os.read(os.open('go too', os.O_RDONLY), 1)\n"
        "handles += [hvd.allreduce_async(np.ones(3), name=name) for name in mine[len(handles) :]]\n"
        "for handle in handles: hvd.synchronize(handle)\n"
    )
    with stalled(tmp_path, 3, script, 1, "go", "go too") as job:
        job.wait_for_line(r"ranks 0, 1 waited \d+\.\d s for 1 tensor: missing rank 2, which did not call it", "stderr")
        let_go(tmp_path)
        let_go(tmp_path, "go too")
        assert job.wait().code == 0


# By default after ten seconds, and not after sixty. Rank 2 could still call both, which helps neither of the others.
@pytest.mark.parametrize("spread", ["1+1+1", "3", "2+1"])
@pytest.mark.parametrize("limit", [1, later(60)])
def test_ranks_that_wait_for_each_other_in_different_calls_get_an_error(
    tmp_path: Path, spread: str, limit: float
) -> None:
    script = (
        "import os\nimport numpy as np\nimport horovod.core as hvd\nhvd.init()\nrank = hvd.rank()\n"
        "if rank == 2: os.read(os.open('never', os.O_RDONLY), 1)\n"
        "both = [0, 1] if rank == 0 else [1, 0]\n"
        "for model in both: hvd.allreduce(np.ones(3), name=f'model_{model}')\n"
    )
    with stalled(tmp_path, 3, script, limit, "never", HOROVOD_PRETEND_HOSTS=spread.replace("+", ",")) as job:
        job.wait_for_line(r"  rank 1 (stands at|has not said)", "stderr")  # it may be too busy to say
        done = job.wait()
    assert done.code == 1, done.stderr
    for rank in range(2):
        text = r"DeadlockError: `allreduce.model_.` failed: ranks 0, 1 wait for each other in different calls, and none"
        assert re.search(text + " of them can go on: ", stderr_of(rank, done.stderr)), done.stderr
    assert re.search(r"DeadlockError.*rank 0 waited \d+\.\d s for `allreduce.model_0`: missing ranks 1, 2", done.stderr)
    assert re.search(r"DeadlockError.*rank 1 waited \d+\.\d s for `allreduce.model_1`: missing ranks 0, 2", done.stderr)
    short = r"warning: stall: ranks 0, 1 wait for each other in different calls \(the error that follows names them\)\n"
    assert re.search(short + ".*  rank 0 (stands at|has not said)", done.stderr), "the errors have the calls"
    assert "explain deadlock" in done.stderr and done.seconds < 15 + SLACK_S
    after = done.stderr[re.search(short, done.stderr).start() :]  # type: ignore[union-attr]
    assert "uneven data" not in after, "before that, a rank may have been late"


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_thread_that_could_still_make_the_other_call_keeps_the_job_alive(tmp_path: Path, transport: str) -> None:
    script = (
        "import os, threading\nimport numpy as np\nimport horovod.core as hvd\nhvd.init()\n"
        "def late():\n    os.read(os.open('go', os.O_RDONLY), 1)\n    hvd.allreduce(np.ones(3), name='a')\n"
        "if hvd.rank() == 0:\n    hvd.allreduce(np.ones(3), name='a')\n"
        "else:\n    threading.Thread(target=late).start()\n"
        "hvd.allreduce(np.ones(3), name='b')\n"
    )
    with stalled(tmp_path, 2, script, 1, HOROVOD_TRANSPORT=transport) as job:
        job.wait_for_line("models that differ: ranks wait for each other in different calls", "stderr", count=4)
        let_go(tmp_path)
        done = job.wait()
    assert done.code == 0, done.stderr


TRAIN = """
import numpy as np
import horovod.core as hvd
hvd.init()
for step in range(10**9):
    hvd.allreduce(np.ones(1000), name="x")
    if step == 5: os.write(1, b"ready %d\\n" % os.getpid())
    if hvd.allreduce(np.array([float(os.path.exists("end"))]), name="end", op=hvd.Max)[0]: break
"""


@pytest.mark.parametrize("transport", ["shm", later("tcp")])
def test_a_suspended_job_goes_on_however_long_it_was_suspended(tmp_path: Path, transport: str) -> None:
    """Ctrl-Z and fg, over limits for silence and stalls that the pause passes."""
    (tmp_path / "train.py").write_text("import os\n" + TRAIN)
    env = {
        "HOROVOD_FROZEN_TIMEOUT_SECONDS": "3",
        "HOROVOD_LOST_TIMEOUT_SECONDS": "3.5",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "4",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4",
        "HOROVOD_TRANSPORT": transport,
        "OMP_NUM_THREADS": "1",
    }
    with Job(tmp_path, "-np", "3", [sys.executable, "train.py"], env=env) as job:
        job.wait_ready(3)
        for _ in range(2):
            os.killpg(job.process.pid, signal.SIGTSTP)
            os.waitid(os.P_PID, job.process.pid, os.WSTOPPED)
            time.sleep(6)  # the pause itself
            os.kill(job.process.pid, signal.SIGCONT)
            os.waitid(os.P_PID, job.process.pid, os.WCONTINUED)
        (tmp_path / "end").touch()
        done = job.wait()
    assert (done.code, done.stderr) == (0, "")


WHERE = """
import os, time
import numpy as np
import horovod.core as hvd
hvd.init()
def stands_here():
    os.read(os.open("go", os.O_RDONLY), 1)
if hvd.rank() == 1:
    stands_here()
hvd.barrier()
print("over", flush=True)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_report_says_where_each_missing_rank_stands(tmp_path: Path, transport: str) -> None:
    with stalled(tmp_path, 3, WHERE, 2, HOROVOD_TRANSPORT=transport) as job:
        (match,) = job.wait_for_line(r"horovod: warning: stall: (.*)", "stderr")
        assert "barrier" in match[1] and match[1].endswith(": missing rank 1, which did not call it"), match[1]
        job.wait_for_line(r"  rank 1 (stands at|has not said)", "stderr")  # it may be too busy to say
        (line,) = job.wait_for_line(r'    File "(.*)", line 7 in stands_here', "stderr")
        assert line[1].endswith("train.py")
        job.wait_for_line(r'    File ".*", line 9 in <module>', "stderr")
        let_go(tmp_path)
        job.wait_for_line("over", count=3)
    assert "rank 0 stands" not in job.wait().stderr


def test_of_packages_between_the_report_shows_the_innermost_call_alone(tmp_path: Path) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    calls = "".join(f"def call{n}():\n    call{n - 1}()\n" for n in range(1, 20))
    (package / "deep.py").write_text(f"import os\ndef call0():\n    os.read(os.open('go', os.O_RDONLY), 1)\n{calls}")
    script = WHERE.replace('os.read(os.open("go", os.O_RDONLY), 1)', "import deep; deep.call19()")
    with stalled(tmp_path, 2, script, 0.5, PYTHONPATH=str(package)) as job:
        job.wait_for_line(r"  rank 1 (stands at|has not said)", "stderr")  # it may be too busy to say
        job.wait_for_line(r'    File ".*train.py", line 9 in <module>', "stderr")
        let_go(tmp_path)
        job.wait_for_line("over", count=2)
    shown = [line.split()[-1] for line in job.wait().stderr.splitlines() if "    File " in line]
    assert shown[:3] == ["call0", "stands_here", "<module>"], shown


def test_a_main_thread_that_is_slow_to_answer_is_waited_for(tmp_path: Path) -> None:
    """As on a busy machine: here it takes the signal half a second after it was sent."""
    slow = """
    import signal
    asked = {signal.SIGRTMIN + 7}
    signal.pthread_sigmask(signal.SIG_BLOCK, asked)
    while not signal.sigpending() & asked: time.sleep(0.01)
    time.sleep(0.4)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, asked)
    stands_here()
"""
    with stalled(tmp_path, 2, WHERE.replace("    stands_here()\n", slow), 1) as job:
        job.wait_for_line(r"  rank 1 stands at", "stderr")
        let_go(tmp_path)
        assert "does not say" not in job.wait().stderr


def test_a_script_keeps_its_own_handler(tmp_path: Path) -> None:
    own = """
import signal
def mine(*_):
    print("taken", flush=True)
if os.environ["HOROVOD_RANK"] == "1":
    signal.signal(signal.SIGRTMIN + 7, mine)
hvd.init()"""
    with stalled(tmp_path, 2, WHERE.replace("hvd.init()", own, 1), 0.5) as job:
        job.wait_for_line(r"  rank 1 does not say where it stands", "stderr")
        let_go(tmp_path)
        done = job.wait()
    assert done.code == 0 and "taken" not in done.stdout, done
