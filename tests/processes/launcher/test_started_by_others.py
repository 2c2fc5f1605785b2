# SPDX-License-Identifier: Apache-2.0
"""One machine, other launchers: mpirun of the wheels, torchrun, and processes that have the environment of srun's.

The real srun is in tests/cluster. Here its variables are enough: ranks that find each other by a file need no more.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.extent import SLACK_S, later
from support.started import Folder, assert_world, end_of, environment, mpi, srun

INIT = "import horovod.core as hvd; hvd.init(); print(hvd.rank(), hvd.size())"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.assert_nothing_is_left()


@pytest.mark.slow("two jobs in PyTorch")
def test_two_jobs_at_a_time_find_their_own_ranks(folder: Folder) -> None:
    results = [folder.new(), folder.new()]
    jobs = [srun(folder, [str(folder.started), str(one)]) for one in results]
    for job in jobs:
        assert [code for code, _ in end_of(job)] == [0] * 4
    for one in results:
        assert_world(one)


def test_ranks_of_one_machine_can_pretend_to_be_on_two(folder: Folder) -> None:
    code = f"{INIT}; print(hvd.local_rank(), hvd.cross_rank())"
    ends = end_of(srun(folder, ["-c", code], env={"HOROVOD_PRETEND_HOSTS": "3,1"}))
    assert [text.split() for _, text in ends] == [
        [str(rank), "4", str(local), str(cross)] for rank, local, cross in ((0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 0, 1))
    ]


def test_one_process_of_several_can_be_meant_alone(folder: Folder) -> None:
    ends = end_of(srun(folder, ["-c", INIT], ranks=[2], env={"HOROVOD_SIZE": "1"}))
    assert ends == [(0, "0 1\n")]


def test_rank_0_alone_tells_of_settings_that_do_nothing(folder: Folder) -> None:
    ends = end_of(srun(folder, ["-c", INIT], env={"HOROVOD_FUSION_TRESHOLD": "1", "HOROVOD_AUTOTUNE": "1"}))
    assert [text.count(" has no effect: ") for _, text in ends] == [2, 0, 0, 0], ends


@pytest.mark.slow("jobs of another launcher")
@pytest.mark.parametrize("launcher", ["mpich", "openmpi", "torchrun"])
def test_a_wrapper_that_drops_the_variables_is_told(folder: Folder, launcher: str) -> None:
    if launcher == "torchrun":
        pytest.importorskip("torch", reason="not run: torch is not installed")
        words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--no-python"]
        python = sys.executable
    else:
        mpirun, python = mpi(launcher)
        words = [*mpirun, "-np", "2"]
    done = run(folder, [*words, "env", "-i", python, "-c", INIT])
    name = "torchrun" if launcher == "torchrun" else "mpirun"
    assert (done.returncode, done.stdout) == (0, "0 1\n" * 2), done
    assert done.stderr.count(f"this process trains alone (size 1): {name} (process ") == 2, done


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_in_init_is_named_at_once(folder: Folder, victim: int) -> None:
    began_s = time.monotonic()
    ends = end_of(srun(folder, ["-c", INIT], of_rank={victim: {"HOROVOD_FAULT_POINT": "rendezvous:kill"}}))
    assert time.monotonic() - began_s < 10 + SLACK_S  # the start timeout is 30 s
    told = "the rendezvous in rank 0 at " if victim == 0 else "cannot go on in init: rank 2 (process "
    for rank in {0, 1, 2, 3} - {victim}:
        assert ends[rank][0] == 1 and told in ends[rank][1], ends


def test_a_rank_that_gives_up_in_init_says_why_to_all(folder: Folder) -> None:
    own = {1: {"HOROVOD_GLOO_IFACE": "nothere"}}
    ends = end_of(srun(folder, ["-c", INIT], env={"HOROVOD_TRANSPORT": "tcp"}, of_rank=own))
    assert all("no network interface 'nothere'" in text for _, text in ends), ends


LATE_ANSWERS = """
import os, time
from horovod.world import rendezvous_server
send = rendezvous_server.RendezvousServer._send
def late(self, connection):
    judged = any(key.endswith("/digest") for key in self._values)
    if judged and connection.starting == 2:
        rendezvous_server.RendezvousServer._send = send
        time.sleep(1.5)  # a thread that gets no processor for so long
    send(self, connection)
rendezvous_server.RendezvousServer._send = late
import horovod.core as hvd
"""


@pytest.mark.parametrize("way", ["a file", "a file, without exit handlers", "MPI of the script", "MPI"])
def test_a_start_that_fails_tells_all_ranks_why(folder: Folder, way: str) -> None:
    """Even if rank 0, in which all meet, could be gone before it has answered them, or sleep in MPI_Finalize."""
    by_file = way.startswith("a file")
    rank = "SLURM_PROCID" if by_file else "PMI_RANK"
    differ = f"half = int(os.environ['{rank}']) % 2; hvd.init(process_sets=[hvd.ProcessSet([half, half + 2])])"
    code = ("from mpi4py import MPI\n" if "script" in way else "") + LATE_ANSWERS + differ
    if "without" in way:
        end = "except ValueError as error: os.write(2, f'StartError: {error}\\n'.encode()); os._exit(1)"
        code = f"{LATE_ANSWERS}try: {differ}\n{end}"
    env = {"HOROVOD_PRETEND_HOSTS": "2,2"}
    began_s = time.monotonic()
    if by_file:
        said = "".join(text for _, text in end_of(srun(folder, ["-c", code], env=env)))
    else:
        mpirun, python = mpi("mpich")
        done = run(folder, [*mpirun, "-np", "4", python, "-c", code], **env)
        assert done.returncode != 0
        said = done.stderr
    told = said.count("the ranks disagree about the process sets given to init: [[0, 2]] on")
    # Some may get it as the words of rank 0, which gave up. A second after the first has told it, mpirun may end all.
    assert told == 4 if by_file else 1 <= told <= 4, said
    # mpirun may mix the lines of several ranks.
    assert len(re.findall(r"StartError(?!\()", said)) == told, said
    assert time.monotonic() - began_s < 15 + SLACK_S  # the start timeout is 30 s


def test_a_rank_that_never_comes_to_mpi_is_named_in_time(folder: Folder) -> None:
    """What is collective in MPI has no time limit, and the rank that has failed ends only when MPI does."""
    results = folder.new()  # what a rank has printed may be lost when MPI ends it
    code = (
        "import pathlib, sys, horovod.core as hvd\n"
        "from horovod.world import bootstrap\n"
        "from mpi4py import MPI\n"  # starts MPI, where the ranks wait for each other: from here on they are abreast
        "if MPI.COMM_WORLD.rank == 2:\n"
        "    bootstrap._Start._open_mpi = lambda start: MPI.COMM_WORLD.Recv(bytearray(1), source=3, tag=7)\n"
        "try: hvd.init()\n"
        "except ValueError as error:\n"
        "    pathlib.Path(sys.argv[1], str(MPI.COMM_WORLD.rank)).write_text(str(error))\n"
        "    MPI.COMM_WORLD.Abort(1)"
    )
    mpirun, python = mpi("mpich")
    command = [*mpirun, "-np", "4", python, "-c", code, str(results)]
    began_s = time.monotonic()
    done = run(folder, command, HOROVOD_TRANSPORT="mpi", HOROVOD_START_TIMEOUT="3")
    assert done.returncode != 0
    told = [path.read_text() for path in results.iterdir()]
    assert any("waited in init for rank 2\n" in text for text in told), (told, done)
    assert time.monotonic() - began_s < 15 + SLACK_S


def test_rank_0_that_never_comes_is_named_with_the_ways_out(folder: Folder) -> None:
    ends = end_of(srun(folder, ["-c", INIT], ranks=[1, 2], env={"HOROVOD_START_TIMEOUT": "1"}))
    for rank, (code, text) in zip((1, 2), ends, strict=True):
        assert code == 1 and f"rank {rank} of 4 waited 1 s in init for the file {folder.home}/.horovod/job-" in text
        assert "look at the output of rank 0" in text and "or start the job with horovodrun" in text


def test_a_killed_rank_0_is_named_by_all(folder: Folder) -> None:
    results = folder.new()
    end = "os.kill(os.getpid(), signal.SIGKILL)"
    ends = end_of(srun(folder, [str(folder.training), str(results), "0", end]))
    assert [code for code, _ in ends] == [-9, 1, 1, 1]
    for rank in (1, 2, 3):
        told = (results / str(rank)).read_text()
        assert "rank 0 (process" in told and "died" in told and "did not answer" not in told


@pytest.mark.parametrize("when", ["before the others call init", "while the others are in init"])
def test_a_child_of_rank_0_does_not_hide_its_end(folder: Folder, when: str) -> None:
    """A forked child holds none of the rendezvous' sockets: it would keep the others waiting in their next init."""
    code = (
        "import os, signal, sys, time, horovod.core as hvd; from horovod.world.launchers import job; hvd.init()\n"
        "rank = hvd.rank(); hvd.barrier(); hvd.shutdown()\n"
        "if rank == 0:\n"
        "    while 'while' in sys.argv[1] and len(job._jobs[0][1].server._entered) != 3: time.sleep(0.01)\n"
        "    child = os.fork()\n"
        "    if child == 0: os.close(1); os.close(2); signal.alarm(60); signal.pause()\n"
        "    print(child, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
        "hvd.init()"
    )
    began_s = time.monotonic()
    ends = end_of(srun(folder, ["-c", code, when], env={"HOROVOD_START_TIMEOUT": "60"}))
    os.kill(int(ends[0][1]), 9)
    assert time.monotonic() - began_s < 20 + SLACK_S
    assert all("the rendezvous in rank 0 at" in text for _, text in ends[1:]), ends


@pytest.mark.parametrize("name", ["openmpi", "openmpi4", "mpich", later("intel")])
def test_mpirun_starts_a_world_with_mpi4py(folder: Folder, name: str) -> None:
    mpirun, python = mpi(name)
    results = folder.new()
    done = run(folder, [*mpirun, "-np", "4", python, str(folder.started), str(results)])
    assert done.returncode == 0, done
    assert_world(results, has_mpi=True)
    assert list(folder.home.iterdir()) == []  # no file was needed


def test_a_script_may_use_mpi4py_beside_us(folder: Folder) -> None:
    """Before init, after shutdown, and at exit, whoever has initialised MPI."""
    code = (
        "import sys\n"
        "if sys.argv[1] == 'first': from mpi4py import MPI\n"
        "import horovod.core as hvd; hvd.init(); import numpy as np\n"
        "from mpi4py import MPI\n"
        "assert MPI.Query_thread() == MPI.THREAD_MULTIPLE\n"
        "total = hvd.allreduce(np.ones(1), op=hvd.Sum)[0] + MPI.COMM_WORLD.allreduce(1)\n"
        "hvd.shutdown(); total += MPI.COMM_WORLD.allreduce(1)\n"
        "import atexit, os; atexit.register(lambda: os.write(1, f'{total} {not MPI.Is_finalized()}\\n'.encode()))"
    )
    mpirun, python = mpi("mpich")
    for order in ("first", "later"):
        done = run(folder, [*mpirun, "-np", "2", python, "-c", code, order])
        assert (done.returncode, done.stdout) == (0, "6.0 True\n" * 2), done


_PAIRS = [(one, other) for one in ("openmpi4", "openmpi", "mpich", "intel") for other in ("openmpi", "mpich", "intel")]
_FOREIGN = [(one, other) for one, other in _PAIRS if one.startswith("openmpi") != (other == "openmpi")]
_DAILY = [("openmpi4", "mpich"), ("mpich", "openmpi")]


@pytest.mark.parametrize(
    ("launcher", "name"),
    [pytest.param(*pair, marks=[pytest.mark.thorough] * (pair not in _DAILY)) for pair in _FOREIGN],
)
def test_mpi4py_of_another_mpi_is_done_without_or_named(folder: Folder, launcher: str, name: str) -> None:
    """The ranks find each other by the file. Its MPI_Init would abort, or find each rank alone."""
    (mpirun, _), (_, python) = mpi(launcher), mpi(name)
    results = folder.new()
    done = run(folder, [*mpirun, "-np", "4", python, str(folder.started), str(results)])
    assert done.returncode == 0, done
    assert_world(results)
    done = run(folder, [*mpirun, "-np", "2", python, "-c", INIT], HOROVOD_CPU_OPERATIONS="mpi")
    assert done.returncode != 0
    assert re.search("MPI cannot be used: mpi4py uses .*, but the job was started by the mpirun of ", done.stderr), done
    assert "start-mpi" in done.stderr


LEAVES = """
import os, sys
if "script" in sys.argv: from mpi4py import MPI
import numpy as np, horovod.core as hvd
hvd.init()
for i in range(10):
    if i == 5 and hvd.rank() == 1 and "early" in sys.argv: os._exit(0)
    hvd.allreduce(np.ones(10, np.float32), name="x")
os._exit(0)
"""


@pytest.mark.parametrize("owner", ["script", "ours"])
@pytest.mark.parametrize(
    "name", ["mpich", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("openmpi", "intel"))]
)
def test_a_rank_that_exits_with_0_in_the_middle_ends_no_job_with_0(folder: Folder, name: str, owner: str) -> None:
    """The mpirun of MPICH kills the others of a rank that ends without MPI_Finalize, and ends with 0 itself."""
    mpirun, python = mpi(name)
    done = run(folder, [*mpirun, "-np", "2", python, "-c", LEAVES, owner, "early"])
    assert done.returncode != 0 and "rank 1 has left the job" in done.stderr, done
    done = run(folder, [*mpirun, "-np", "2", python, "-c", LEAVES, owner])
    assert done.returncode == 0, done


@pytest.mark.parametrize(
    "name", ["mpich", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("openmpi", "intel"))]
)
def test_the_time_limit_of_init_holds_in_mpi_init(folder: Folder, name: str) -> None:
    """Nothing interrupts it, and with MPICH it waits for a rank that has ended before, for ever."""
    mpirun, python = mpi(name)
    rank = "OMPI_COMM_WORLD_RANK" if name == "openmpi" else "PMI_RANK"
    code = f"import os, sys\nif os.environ['{rank}'] == '1': sys.exit(0)\n{INIT}"
    began_s = time.monotonic()
    done = run(folder, [*mpirun, "-np", "2", python, "-c", code], HOROVOD_START_TIMEOUT="2")
    assert time.monotonic() - began_s < 10 + SLACK_S
    assert (
        done.returncode != 0 and " waited 2 s in MPI_Init, which returns when all ranks have called it" in done.stderr
    )


def test_a_script_is_told_once_that_mpi4py_knows_no_other_rank_under_horovodrun(folder: Folder) -> None:
    _, python = mpi("mpich")
    code = "from mpi4py import MPI; import horovod.core as hvd; hvd.init(); hvd.shutdown(); hvd.init()"
    done = run(folder, [python, "-m", "horovod.launcher", "-np", "2", python, "-c", code])
    assert done.returncode == 0 and done.stderr.count("each of the 2 ranks is alone (MPI.COMM_WORLD.size is 1)") == 1
    assert "hint: horovodrun --mpi does" in done.stderr


@pytest.mark.slow("torchrun and its ranks import PyTorch")
def test_torchrun_starts_a_world(folder: Folder) -> None:
    pytest.importorskip("torch", reason="not run: torch is not installed")
    results = folder.new()
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", str(folder.started), str(results)]
    done = run(folder, words)
    assert done.returncode == 0, done
    assert_world(results)


def run(folder: Folder, words: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    own = environment(folder.home, **more)
    return subprocess.run(words, env=own, capture_output=True, text=True)
