# SPDX-License-Identifier: Apache-2.0
"""However a job ends, it ends as one: in time, with the cause named last, and with nothing left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from support.extent import SLACK_S
from support.jobs import Job, python, run_job
from support.patience import wait_until
from support.ports import assert_closed

from horovod.launcher.host import processes

WAIT = "ready(); signal.pause()"
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN); rank == 0 and sys.exit(4)\nwhile True: signal.pause()"
WAIT_FOR_USR1 = "signals = [signal.SIGUSR1]; signal.pthread_sigmask(0, signals); ready(); signal.sigwait(signals)"
END_S = 3.0 + SLACK_S
FROZEN = "HOROVOD_FROZEN_TIMEOUT_SECONDS"


@pytest.mark.parametrize("code", [1, 3, 255])
def test_the_exit_code_is_the_failing_ranks(tmp_path: Path, code: int) -> None:
    done = run_job(tmp_path, "-np", "3", python(f"rank == 1 and sys.exit({code}); signal.pause()"))
    assert done.code == code and done.seconds < END_S
    assert done.stderr.startswith(f"horovodrun: rank 1 on host localhost exited with code {code}\n")


def test_the_last_words_show_what_the_rank_said_last(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "2", python("if rank == 1: raise KeyError('weights')\nsignal.pause()"))
    assert done.code == 1 and "Traceback" in done.stderr
    said = done.stderr.partition("horovodrun: the last lines of rank 1's stderr:\n")[2]
    assert said == "    KeyError: 'weights'\nhorovodrun: rank 1 on host localhost exited with code 1\n" + (
        "more: horovodrun --explain rank-failed\n"
    )


def test_the_rank_whose_call_was_wrong_is_named_though_the_one_that_waited_for_it_ended_first(tmp_path: Path) -> None:
    code = """
import numpy, time
import horovod.core as hvd
hvd.init()
waiting = hvd.allgather_object(os.getpid(), name="pids")[0]
try:
    hvd.allreduce(numpy.ones(2), op=17 if rank == 1 else hvd.Sum)
finally:
    while rank == 1 and os.path.exists(f"/proc/{waiting}/cwd"):  # a zombie has none
        time.sleep(0.01)
"""
    done = run_job(tmp_path, "-np", "2", python(code))
    assert "PeerRefusedError: rank 1 could not call unnamed allreduce: op=17: expected one of Average" in done.stderr
    said = done.stderr.partition("horovodrun: the last lines of rank 1's stderr:\n")[2]
    assert "InvalidRequestError: rank 1: unnamed allreduce: op=17: expected one of Average" in said
    assert "horovodrun: rank 1 on host localhost exited with code 1\n" in said


def test_lines_written_long_before_a_kill_are_no_last_words(tmp_path: Path) -> None:
    code = "print('a warning at the start', file=sys.stderr, flush=True); ready(); signal.pause()"
    with Job(tmp_path, "-np", "2", python(code)) as job:
        pids = job.wait_ready(2)
        time.sleep(2.5)  # what counts as long before
        os.kill(pids[1], signal.SIGKILL)
        done = job.wait()
    last_words = done.stderr[done.stderr.index("horovodrun: ") :]
    assert last_words.startswith("horovodrun: rank 1 on host localhost was killed by SIGKILL\n")
    assert "a warning" not in last_words


def test_ranks_that_the_launcher_ends_are_not_reported_as_exits(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "2", "--verbose", python("rank == 1 and sys.exit(3); signal.pause()"))
    assert re.search(r"horovodrun: rank 0 \(process \d+\) was ended by horovodrun\n", done.stderr)
    assert "code -15" not in done.stderr


def test_a_stopped_agent_is_named_and_ends_the_job(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "2", python(WAIT), env={"HOROVOD_LOST_TIMEOUT_SECONDS": "2"}) as job:
        job.wait_ready(2)
        agent = job.agent()
        os.kill(agent, signal.SIGSTOP)
        done = job.wait()
    assert done.code == 1
    assert (
        f"the agent that holds the ranks of host localhost (process {agent}) has said nothing for 2 s: it is stopped"
        in (done.stderr)
    )


def test_an_agent_that_is_stopped_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "2", python(WAIT_FOR_USR1), env={"HOROVOD_LOST_TIMEOUT_SECONDS": "0"}) as job:
        pids = job.wait_ready(2)
        os.kill(job.agent(), signal.SIGSTOP)
        for pid in pids.values():
            os.kill(pid, signal.SIGUSR1)
        time.sleep(1.5)
        os.kill(job.agent(), signal.SIGCONT)
        assert job.wait().code == 0


def test_each_host_of_the_list_has_an_agent_of_its_own(tmp_path: Path) -> None:
    """Two names of this machine are two hosts to the launcher."""
    code = "print(*(os.environ[f'HOROVOD_{name}'] for name in ('HOSTNAME', 'LOCAL_RANK', 'CROSS_RANK'))); "
    with Job(tmp_path, "-np", "3", "-H", "localhost:2,127.0.0.1:1", python(code + WAIT)) as job:
        job.wait_ready(3)
        assert sum("horovod.launcher.host.agent" in command for command in job.pids().values()) == 2
        os.killpg(job.process.pid, signal.SIGTSTP)  # all of them suspend before horovodrun stops itself
        assert os.WIFSTOPPED(os.waitpid(job.process.pid, os.WUNTRACED)[1])
        os.kill(job.process.pid, signal.SIGCONT)
        job.process.terminate()
        done = job.wait()
    assert sorted(line for line in done.stdout.splitlines() if "ready" not in line) == [
        "[0]<stdout>:localhost 0 0",
        "[1]<stdout>:localhost 1 0",
        "[2]<stdout>:127.0.0.1 0 1",
    ]


def test_a_killed_agent_of_one_of_two_hosts_ends_the_other(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "2", "-H", "localhost:1,127.0.0.1:1", python(WAIT)) as job:
        job.wait_ready(2)
        os.kill(job.agent(), signal.SIGKILL)
        done = job.wait()
    assert done.code == 1
    assert re.search(r"horovodrun: host (localhost|127.0.0.1) was lost: its agent was killed by SIGKILL", done.stderr)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_rank_that_dies_by_a_signal_ends_the_job(tmp_path: Path, number: signal.Signals) -> None:
    with Job(tmp_path, "-np", "3", python(WAIT)) as job:
        pids = job.wait_ready(3)
        os.kill(pids[2], number)
        done = job.wait()
        assert done.code == 128 + number
        assert f"horovodrun: rank 2 on host localhost was killed by {number.name}" in done.stderr
        assert "hint:" in done.stderr and "Traceback" not in done.stderr


def test_survivors_that_ignore_sigterm_are_killed_in_time(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "2", python(IGNORE))
    assert done.code == 4
    assert 4.0 <= done.seconds < 4.0 + END_S  # a second for the survivors, three between SIGTERM and SIGKILL


def test_the_grace_is_a_setting(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "2", "--termination-grace-seconds", "4.5", python(IGNORE))
    assert done.code == 4 and done.seconds >= 5.5  # by default it is three


def test_survivors_may_run_their_handlers_before_they_are_asked_to_end(tmp_path: Path) -> None:
    # Rank 1 is told of the death by a pipe that rank 0 holds open, as the core tells it by an exception.
    os.mkfifo(tmp_path / "alive")
    code = (
        "if rank == 0: fd = os.open('alive', os.O_WRONLY); ready(); signal.pause()\n"
        "fd = os.open('alive', os.O_RDONLY); ready(); os.read(fd, 1)\n"
        "print('handled', flush=True); sys.exit(9)"
    )
    with Job(tmp_path, "-np", "2", python(code)) as job:
        os.kill(job.wait_ready(2)[0], signal.SIGKILL)
        done = job.wait()
    assert "[1]<stdout>:handled\n" in done.stdout
    assert done.code == 137 and "rank 0 on host localhost was killed by SIGKILL" in done.stderr


def test_a_rank_that_shuts_down_while_others_train_is_named_as_the_ranks_name_it(tmp_path: Path) -> None:
    code = "hvd.init()\nif rank == 1: hvd.shutdown(); signal.pause()\nhvd.allreduce(numpy.ones(1))"
    done = run_job(tmp_path, "-np", "2", python("import numpy, horovod.core as hvd\n" + code))
    assert done.code == 1 and re.search("RankLeftError: .*rank 1 has left the job", done.stderr), done
    last = done.stderr.splitlines()[-4:]
    assert last[0].startswith("horovodrun: rank 1 on host localhost shut down while other ranks still waited for it")
    assert last[2:] == [
        "hint: all ranks must make the same number of steps and collective calls",
        "more: horovodrun --explain rank-left",
    ]


def test_a_rank_that_leaves_and_joins_alone_is_named_with_what_it_did(tmp_path: Path) -> None:
    code = (
        "import numpy as np, horovod.core as hvd; hvd.init()\n"
        "if hvd.rank() == 1: hvd.shutdown(); hvd.init()\n"
        "hvd.allreduce(np.ones(3), name='x')"
    )
    done = run_job(tmp_path, "-np", "2", python(code))
    last = done.stderr.splitlines()[-4:]
    said = "horovodrun: rank 1 on host localhost called shutdown() and init() while other ranks still waited for it"
    assert (done.code, last[0]) == (1, said) and "rank 1 has left the job" in last[1], done


# A child, a child in a session of its own, and a daemon that nobody is the parent of; each says so to the test.
FAMILY = (
    "import subprocess\n"
    "child = [sys.executable, '-c', 'import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    'os.write(1, b"ready %d\\\\n" % os.getpid())\\nwhile True: signal.pause()\']\n'
    "subprocess.Popen(child); subprocess.Popen(child, start_new_session=True)\n"
    "if os.fork() == 0:\n"
    "  os.setsid()\n"
    "  if os.fork() == 0: os.execv(child[0], child)\n"
    "  os._exit(0)\n"
    "os.wait(); ready()\n"
)


@pytest.mark.parametrize("end", ["exit(0)", "exit(2)", "os.kill(os.getpid(), 9)"])
def test_children_and_daemons_do_not_outlive_their_ranks(tmp_path: Path, end: str) -> None:
    code = FAMILY + f"if sys.stdin.readline() == '': os.read(os.open('go', os.O_RDONLY), 1); {end}"
    os.mkfifo(tmp_path / "go")
    with Job(tmp_path, "-np", "1", "--termination-grace-seconds", "0.2", python(code)) as job:
        job.wait_for_line("ready", count=4)
        assert len(job.pids()) == 2 + 4
        os.close(os.open(tmp_path / "go", os.O_WRONLY))
        done = job.wait()
        assert not job.pids()  # nothing is left when horovodrun returns, not merely soon after
    assert done.code == {"exit(0)": 0, "exit(2)": 2}.get(end, 137)


@pytest.mark.parametrize("victim", ["horovodrun", "agent"])
def test_kill_9_of_the_launchers_own_processes_ends_everything(tmp_path: Path, victim: str) -> None:
    with Job(tmp_path, "-np", "2", "--termination-grace-seconds", "0.5", python(FAMILY + "signal.pause()")) as job:
        job.wait_for_line("ready", count=8)
        launcher = job.process.pid
        os.kill(launcher if victim == "horovodrun" else job.agent(), signal.SIGKILL)
        job.assert_gone()
        done = job.wait()
    if victim == "agent":
        assert done.code == 137
        assert "the agent that held the ranks of host localhost was killed by SIGKILL" in done.stderr
    else:
        assert done.stderr == f"horovodrun: the launcher (process {launcher}) was killed; all ranks have been ended\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_horovodrun_ends_all_ranks(tmp_path: Path, number: signal.Signals) -> None:
    with Job(tmp_path, "-np", "2", python(WAIT)) as job:
        job.wait_ready(2)
        os.kill(job.process.pid, number)
        done = job.wait()
    assert done.code == 128 + number and done.seconds < END_S
    assert done.stderr == f"horovodrun: {number.name}: ending all ranks\n"


def test_under_nohup_a_job_outlives_its_terminal(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "2", python(WAIT_FOR_USR1), nohup=True) as job:
        pids = job.wait_ready(2)
        os.kill(job.process.pid, signal.SIGHUP)
        for pid in pids.values():
            os.kill(pid, signal.SIGUSR1)
        done = job.wait()
    assert (done.code, done.said) == (0, "")


def test_ctrl_c_at_the_terminal_reaches_horovodrun_alone(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True)); ready(); signal.pause()"
    with Job(tmp_path, "-np", "2", python(code)) as job:
        job.wait_ready(2)
        os.killpg(job.process.pid, signal.SIGINT)  # what a terminal does
        done = job.wait()
    assert done.code == 130 and "interrupted" not in done.stdout


def test_a_second_interrupt_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True)); ready()\nwhile True: signal.pause()"
    with Job(tmp_path, "-np", "2", "--termination-grace-seconds", "60", python(code)) as job:
        job.wait_ready(2)
        os.kill(job.process.pid, signal.SIGINT)
        job.wait_for_line("asked", count=2)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait().code == 130


def test_repeated_interrupts_end_a_job_whose_output_nobody_reads(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "1", python("ready()\nwhile True: print('x' * 1000)"), read=False) as job:
        assert job.process.stdout is not None
        job.process.stdout.readline()
        pipe = job.process.stdout.fileno()
        full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) - 4096
        wait_until(lambda: int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder) >= full)
        # Again and again, as one does: a signal that comes just before a write blocks is seen with the next one.
        for number in [signal.SIGINT] * 20:
            job.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(timeout=1)
        assert job.process.returncode == 130


def test_who_does_not_stop_asking_gets_the_same_code(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "1", python("import time\nready()\ntime.sleep(600)")) as job:
        job.wait_ready(1)
        while job.process.poll() is None:
            job.process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        done = job.wait()
        assert done.code == 130 and "Traceback" not in done.stderr, done


@pytest.mark.parametrize(
    ("env", "said"),
    [({}, r"rank 1 \(pid \d+\) was stopped by SIGSTOP"), ({FROZEN: "0"}, "the other ranks wait for it")],
    ids=["soon continued", "limit off"],
)
def test_a_stopped_rank_is_reported_and_is_no_failure(tmp_path: Path, env: dict[str, str], said: str) -> None:
    with Job(tmp_path, "-np", "2", python(WAIT_FOR_USR1), env=env) as job:
        pids = job.wait_ready(2)
        os.kill(pids[1], signal.SIGSTOP)
        job.wait_for_line(said, "stderr")
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGUSR1)
        assert job.wait().code == 0


@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGTSTP])
def test_a_job_whose_launcher_is_stopped_is_suspended_and_goes_on_with_it(tmp_path: Path, stop: signal.Signals) -> None:
    """As batch systems do, which stop the process that they started; and by Ctrl-Z, which the whole group gets."""
    with Job(tmp_path, "-np", "2", python(WAIT_FOR_USR1)) as job:
        pids = job.wait_ready(2)
        (os.kill if stop == signal.SIGSTOP else os.killpg)(job.process.pid, stop)
        assert os.WIFSTOPPED(os.waitpid(job.process.pid, os.WUNTRACED)[1])
        wait_until(lambda: [processes.state(pid) for pid in pids.values()] == ["T", "T"], job.shown)
        os.kill(job.process.pid, signal.SIGCONT)
        wait_until(lambda: "T" not in [processes.state(pid) for pid in pids.values()], job.shown)
        for pid in pids.values():
            os.kill(pid, signal.SIGUSR1)
        done = job.wait()
    assert (done.code, done.said) == (0, "")


def test_a_rank_that_stays_stopped_ends_the_job_though_no_other_waits_for_it(tmp_path: Path) -> None:
    with Job(tmp_path, "-np", "2", python(WAIT), env={FROZEN: "0.5"}) as job:
        pids = job.wait_ready(2)
        os.kill(pids[1], signal.SIGSTOP)
        done = job.wait()
    assert done.code == 128 + signal.SIGSTOP
    assert "horovodrun: rank 1 on host localhost was stopped by SIGSTOP and not continued" in done.stderr


@pytest.mark.parametrize("last_words", ["sys.exit(3)", "sys.exit(0)"])
def test_ranks_that_wait_in_init_say_their_words_about_one_that_is_gone(tmp_path: Path, last_words: str) -> None:
    code = f"""
import time
import horovod.core as hvd
from horovod.settings import Settings
from horovod.world.rendezvous import Rendezvous
from horovod.world.secret import read_secret
def slowly(*error): time.sleep(2.0); sys.__excepthook__(*error)
sys.excepthook = slowly
if rank != 1: hvd.init()
settings = Settings.from_environment()
job = Rendezvous(settings.rendezvous_address, settings.rendezvous_port, read_secret(settings.secret_file))
while job.entered(0) != [0, 2]: time.sleep(0.01)
{last_words}
"""
    done = run_job(tmp_path, "-np", "3", "--start-timeout", "1000", python(code))
    assert done.code != 0
    how = f"exited with code {last_words[-2]}"
    for rank in (0, 2):
        assert re.search(rf"\[{rank}\].*StartError: rank {rank} cannot go on in init: rank 1 .* {how}", done.stderr)
    assert f"horovodrun: rank 1 on host localhost {how}" in done.stderr


def test_processes_that_are_forked_during_the_suspension_are_suspended_too(tmp_path: Path) -> None:
    """Some are being forked while the others are stopped."""

    def runs(job: Job) -> list[int]:
        ranks = [pid for pid, command in job.pids().items() if "horovod.launcher" not in command]
        return [pid for pid in ranks if processes.state(pid) not in ("T", "Z", "")]

    code = """
import time
ready()
children = []
while True:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
    if len(children) > 50:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children.pop(0), 0)
    time.sleep(0.001)
"""
    with Job(tmp_path, "-np", "2", python(code)) as job:
        job.wait_ready(2)
        job.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: not runs(job), job.shown)
        job.process.send_signal(signal.SIGCONT)
        wait_until(lambda: bool(runs(job)), job.shown)
        job.process.send_signal(signal.SIGTERM)
        job.wait()


def test_the_rendezvous_port_is_closed_with_the_job(tmp_path: Path) -> None:
    done = run_job(tmp_path, "-np", "1", python("print(os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT'])"))
    assert_closed([done.stdout.rpartition(":")[2]], tmp_path, done.stdout)
