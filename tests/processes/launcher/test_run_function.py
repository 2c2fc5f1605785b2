# SPDX-License-Identifier: Apache-2.0
"""horovod.run: a function's results by rank, and its failures in the caller."""

from __future__ import annotations

import functools
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from support.jobs import our_environment
from support.patience import Patience

import horovod
import horovod.core as hvd
from horovod.core.exceptions import HorovodInternalError
from horovod.launcher.function.run_task import dumps

# The ranks cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class OwnError(Exception):
    def __init__(self, rank: int) -> None:
        super().__init__(f"own error of {rank}")
        self.rank = rank

    def __reduce__(self) -> Any:
        return OwnError, (self.rank,)


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()


LOCK = threading.Lock()


def locked() -> bool:
    return LOCK.locked()


class TwoArguments(Exception):
    """Can be pickled, but not loaded: its constructor takes two."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


def fail_on(failing: int) -> int:
    hvd.init()
    if hvd.rank() == failing:
        raise OwnError(hvd.rank())
    hvd.barrier()
    return hvd.rank()


def test_a_thread_does_not_keep_a_rank_whose_function_has_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_RAISED_GRACE_SECONDS", "0.1")

    def work() -> None:
        threading.Thread(target=threading.Event().wait).start()
        raise OwnError(0)

    with pytest.raises(OwnError):
        horovod.run(work, np=1)


def test_results_come_in_rank_order() -> None:
    offset = 100

    def work(a: float, *, b: int) -> tuple[int, int, float]:
        hvd.init()
        return offset + hvd.rank(), hvd.size(), float(hvd.allreduce(np.array([a * (hvd.rank() + b)]), op=hvd.Sum)[0])

    assert horovod.run(work, (2.0,), {"b": 1}, np=3) == [(100 + rank, 3, 12.0) for rank in range(3)]
    assert horovod.run(lambda: "alone") == ["alone"]


def test_the_exception_of_a_rank_is_raised_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OwnError, match="own error of 1") as caught:
        horovod.run(fail_on, (1,), num_proc=3)
    assert caught.value.rank == 1  # not what the others made of it, which is a HorovodInternalError
    text = str(caught.value.__cause__)
    assert "rank 1:\nTraceback" in text and "in fail_on\n" in text and "raise OwnError(hvd.rank())" in text
    assert "[1]<stderr>:" in capfd.readouterr().err


def test_what_a_rank_prints_is_shown(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    horovod.run(lambda: print("hello"), np=2, output_filename=str(tmp_path / "out"))
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]
    assert (tmp_path / "out" / "rank.1" / "stdout").read_text() == "hello\n"


def test_exceptions_and_results_that_do_not_travel_are_named() -> None:
    def two() -> None:
        raise TwoArguments(1, 2)

    with pytest.raises(RuntimeError, match=r"rank 0 raised .*TwoArguments: 1 and 2"):
        horovod.run(two)
    with pytest.raises(TypeError, match="the result of rank 0 cannot be pickled"):
        horovod.run(lambda: (number for number in range(3)))
    with pytest.raises(TypeError, match=r"horovod.run: args cannot be pickled: .* \(in item 0\)"):
        horovod.run(print, (inspect.currentframe(),))
    holder = Holder()
    where = "in the variable holder of the function around <lambda>, the attribute lock of Holder"
    with pytest.raises(TypeError, match=f"horovod.run: func cannot be pickled: .* \\({where}\\)"):
        horovod.run(lambda: holder)
    where = "in the global variable LOCK, which locked uses"
    with pytest.raises(TypeError, match=f"horovod.run: func cannot be pickled: .* \\({where}\\)"):
        horovod.run(locked)


def test_a_rank_that_ends_without_an_answer_is_named(tmp_path: Path) -> None:
    def leave(number: int) -> None:
        hvd.init()
        hvd.barrier()
        other = tmp_path / "has left the barrier"
        if hvd.rank() == 1:
            while not other.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), number)
        other.touch()
        signal.pause()

    with pytest.raises(RuntimeError) as caught:
        horovod.run(leave, (int(signal.SIGKILL),), np=2)
    lines = str(caught.value).splitlines()
    assert lines[0] == "horovod.run: the job ended with exit code 137; no result from rank 0, 1"
    assert lines[1] == "horovodrun: rank 1 on host localhost was killed by SIGKILL", lines
    assert lines[-1] == "more: horovodrun --explain rank-killed"


@pytest.mark.parametrize("code, told", [(3, 3), (0, 1), ("no data", 1)])
def test_a_rank_that_calls_exit_is_told_with_its_code(
    code: int | str, told: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rank that exits has no result, whatever it says."""

    def ends() -> None:
        sys.exit(code)

    with pytest.raises(RuntimeError, match=re.escape(f"rank 0 called sys.exit({code!r})")):
        horovod.run(ends)
    assert f"horovodrun: rank 0 on host localhost exited with code {told}\n" in capfd.readouterr().err


def test_a_lost_rank_is_named_by_the_error_of_the_others() -> None:
    def leave() -> None:
        hvd.init()
        hvd.barrier()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    with pytest.raises(HorovodInternalError, match=r"rank 1 \(process \d+\) died"):
        horovod.run(leave, np=2)


def test_arguments_that_do_not_fit_are_refused_before_anything_starts(tmp_path: Path) -> None:
    def touch() -> None:
        (tmp_path / "started").touch()

    cases: list[tuple[dict[str, Any], str]] = [
        ({"np": 0}, "at least 1"),
        ({"np": 3, "hosts": "localhost:2"}, "2"),
        ({"hosts": "localhost:1", "hostfile": "x"}, "both hosts and hostfile"),
        ({"use_gloo": True, "use_mpi": True}, "both use_gloo and use_mpi"),
        ({"hosts": ""}, "-H names no host"),
        ({"np": 2, "min_np": 3}, "--min-np 3 is more than -np 2"),
        ({"executable": "/nowhere/python"}, "command not found"),
        ({"network_interface": "nowhere0"}, "nowhere0"),
        ({"np": 2, "hosts": "localhost:1,far-away:1", "start_timeout": 0}, "--start-timeout='0': expected a number"),
    ]
    for options, text in cases:
        with pytest.raises(ValueError, match=text):
            horovod.run(touch, **options)
    assert not (tmp_path / "started").exists()


SCRIPT = """
import os, signal, sys, horovod
import beside

def work():
    import horovod.core as hvd
    hvd.init()
    return beside.double(hvd.rank())

def wait():
    os.write(1, b"ready %d\\n" % os.getpid())
    signal.pause()

if sys.argv[1] == "work":
    print(horovod.run(work, np=2))
else:
    try:
        horovod.run(wait, np=2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def script(directory: Path, argument: str) -> subprocess.Popen[str]:
    (directory / "beside.py").write_text("def double(x): return 2 * x\n")
    (directory / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(directory / "script.py"), argument],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env=our_environment(),
    )


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline().rpartition("ready ")[2]) for _ in range(2)]


def wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert Patience().ask(functools.partial(wait, [descriptor])), f"process {pid} is still there"
        finally:
            os.close(descriptor)


def test_a_script_finds_its_own_modules_in_the_ranks(tmp_path: Path) -> None:
    with script(tmp_path, "work") as process:
        assert process.stdout is not None and process.stdout.read() == "[0, 2]\n"
    assert process.returncode == 0


def test_the_callers_modules_come_first_here_and_in_the_ranks(tmp_path: Path) -> None:
    """Also if a package of that name is installed; and what lies in the current directory stands in for nothing."""
    for name, text in (("proj/work.py", "from tools import name"), ("proj/tools.py", "name = 'own'")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "proj" / "main.py").write_text(
        "import work, horovod\nprint(horovod.run(lambda: work.name, np=1, verbose=False))\n"
    )
    for name in ("lib/tools/__init__.py", "here/json.py", "here/selectors.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('the wrong module')\n")
    path = os.pathsep.join([*filter(None, sys.path), str(tmp_path / "lib")])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "proj" / "main.py")],
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "['own']\n", done


def test_an_interrupt_ends_the_job_and_reaches_the_caller(tmp_path: Path) -> None:
    with script(tmp_path, "wait") as process:
        pids = ranks_of(process)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None and process.stdout.read() == "interrupted\n"
    wait_until_gone(pids)


def test_nothing_is_left_of_a_caller_that_is_killed(tmp_path: Path) -> None:
    with script(tmp_path, "wait") as process:
        pids = ranks_of(process)
        process.kill()
    wait_until_gone(pids)


def test_without_cloudpickle_what_needs_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    monkeypatch.delitem(sys.modules, "horovod.core.pickling", raising=False)
    monkeypatch.delattr("horovod.core.pickling", raising=False)
    assert dumps((os.getpid, (), {}), "func")
    with pytest.raises(TypeError, match="func cannot be pickled.*\nhint: .*install cloudpickle"):
        dumps((lambda: 1, (), {}), "func")

    class Main:  # stands for a function of the script
        __module__ = "__main__"

    with pytest.raises(TypeError, match="defined in the script itself\nhint: .*install cloudpickle"):
        dumps((Main(), (), {}), "func")


def test_the_parameters_are_horovods() -> None:
    names = (
        "func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile "
        "host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo "
        "use_mpi mpi_args network_interface network_interfaces executable np min_np max_np"
    )
    parameters = inspect.signature(horovod.run).parameters
    assert list(parameters) == names.split()
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert (defaults["args"], defaults["num_proc"], defaults["np"]) == ((), 1, None)
