# SPDX-License-Identifier: Apache-2.0
"""Sessions of Spark for tests, and the processes that their ranks may leave behind."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from horovod.settings import changed_environment, current_environment
from support.extent import SLACK_S
from support.patience import wait_until
from support.started import not_run

# In the environment of every process that these tests start: others run jobs of this package beside them.
MARK = "HVD_TESTS_OF"
os.environ.setdefault(MARK, str(os.getpid()))  # a driver that a test starts has it already
GONE_S = 6.0 + SLACK_S  # Spark ends a worker after 2 s, and its agent then ends the rank within 3 s


@contextlib.contextmanager
def _variables(home: Path) -> Iterator[None]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        not_run("java is not installed (openjdk-17-jre-headless)")
    variables = {"HOME": str(home), "PYSPARK_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", "")]))
    with changed_environment(**{name: value or None for name, value in variables.items()}):
        yield


@contextlib.contextmanager
def session(master: str, home: Path, **conf: str) -> Iterator[Any]:
    """A session whose workers use this Python. `conf`: names without `spark.`, and `_` for `.`."""
    from pyspark.sql import SparkSession

    with _variables(home):
        builder = SparkSession.builder.master(master).appName("tests")
        given = {
            "driver.memory": "1g",
            "executor.memory": "700m",
            "ui.enabled": "false",
            "driver.bindAddress": "127.0.0.1",
            "driver.host": "127.0.0.1",
            "ui.showConsoleProgress": "false",
            "task.maxFailures": "1",
            "local.dir": str(home),
            "sql.warehouse.dir": str(home / "warehouse"),
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        for name, value in given.items():
            builder = builder.config(f"spark.{name}", value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


@contextlib.contextmanager
def connect_session(master: str, home: Path) -> Iterator[Any]:
    """A client of Spark Connect, and a server for it."""
    from pyspark.sql import SparkSession

    # The server's; a client can no longer set them.
    given = {"driver.memory": "1g", "ui.enabled": "false", "ui.showConsoleProgress": "false", "log.level": "OFF"}
    given |= {"local.dir": str(home), "sql.warehouse.dir": str(home / "warehouse")}
    arguments = " ".join(f"--conf spark.{name}={value}" for name, value in given.items())
    _end_jvm()
    connect = {"SPARK_CONNECT_MODE_ENABLED": None, "SPARK_REMOTE": None, "SPARK_LOCAL_REMOTE": None}
    with (
        _variables(home),
        changed_environment(PYSPARK_SUBMIT_ARGS=f"{arguments} pyspark-shell", SPARK_LOCAL_IP="127.0.0.1", **connect),
    ):
        spark = SparkSession.builder.remote(master).getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()


def _end_jvm() -> None:
    """Of an earlier session in this process. It would keep what that session was configured with, such as GPUs."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


class Watched(io.StringIO):
    """Output that calls `then` in another thread's place once it holds `word`."""

    def __init__(self, word: str, then: Callable[[], object]) -> None:
        super().__init__()
        self._word = word
        self._then: Callable[[], object] | None = then

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._then is not None and self._word in self.getvalue():
            then, self._then = self._then, None
            then()
        return written


def processes_of_jobs() -> dict[int, str]:
    """The agents, ranks and supervising processes that these tests have started and that run now, by pid."""
    mark, found = f"{MARK}={os.environ[MARK]}\0".encode(), {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdigit() else ""
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0] if command else "Z"
            if "horovod.launcher." in command and state != "Z" and mark in (entry / "environ").read_bytes() + b"\0":
                found[int(entry.name)] = command
    return found


def assert_nothing_is_left(within_s: float = GONE_S) -> None:
    wait_until(lambda: not processes_of_jobs(), processes_of_jobs, within_s)


def kill_above(what: str) -> None:
    """Kills the first process above this one whose command has this word; "" is this one."""
    pid = os.getpid()
    while what not in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    signal.pause()


def train_elastically(kill: str | None, steps: int) -> tuple[int, int, bool]:
    """Trains, and goes on until a lost worker was replaced. `kill`: see kill_above; None: nothing."""
    import numpy as np

    import horovod.core as hvd
    from horovod.core.objects import broadcast_object
    from horovod.elastic.state.state import ObjectState
    from horovod.elastic.worker.wrapper import run_fn

    hvd.init()
    state = ObjectState(broadcast_object, hvd.rank, step=0, has_lost=False)

    def loop(state: Any) -> tuple[int, int, bool]:
        while state.step < steps or (kill is not None and not (state.has_lost and hvd.size() == 2)):
            if kill is not None and current_environment()["HOROVOD_ELASTIC_WORKER"] == "1" and state.step == 5:
                kill_above(kill)
            hvd.allreduce(np.ones(1), name="step")
            state.has_lost = state.has_lost or hvd.size() == 1
            state.step += 1
            state.commit()
            time.sleep(0.02)
        return hvd.rank(), hvd.size(), state.has_lost

    result: tuple[int, int, bool] = run_fn(loop, None)(state)
    return result
