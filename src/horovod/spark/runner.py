# SPDX-License-Identifier: Apache-2.0
"""horovod.spark.run: a Python function as a job whose ranks run in Spark tasks.

    results = horovod.spark.run(train, args=(0.1,), num_proc=4)

The driver starts a process that supervises the job (assembly.py), and a Spark job of one task a rank. Each task starts
the launcher's agent on its executor, and carries its pipes to that process (task/relay.py). From there on it is a job
like horovodrun's: one cause if it fails, all output at the driver, nothing left behind. The function and its results do
not pass through Spark (launcher/function/exchange.py). With HOROVOD_SPARK_SUPERVISOR=task the supervising process runs
in task 0, and they do.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import selectors
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from horovod.core import tracebacks
from horovod.core.wording import counted
from horovod.launcher.function.answers import answer_of
from horovod.launcher.function.run_task import dumps
from horovod.launcher.function.supervised import Supervised, put
from horovod.settings import Settings, current_environment
from horovod.spark.assembly import PROGRESS_S, SPARK_END_S, Assembly, late, progress
from horovod.spark.connect import active_session
from horovod.spark.job import SparkJob, supervised_task_of, task_of
from horovod.spark.slots import is_local, wait_for_slots
from horovod.spark.task.outcome import Came
from horovod.world.network import interface_address
from horovod.world.secret import new_secret

__all__ = ["called", "dumped_call", "name_of_call", "run", "run_elastic"]

_NAME = "horovod.spark.run"
_ELASTIC = "horovod.spark.run_elastic"
_LOOK_S = 0.5  # for Spark's tasks, of which it sends no word
_numbers = itertools.count()
_called: contextvars.ContextVar[str] = contextvars.ContextVar("horovod.spark", default="")


@contextlib.contextmanager
def called(name: str) -> Iterator[None]:
    """Errors of jobs that run inside begin with `name`: what the user has called."""
    before = _called.set(name)
    try:
        yield
    finally:
        _called.reset(before)


def name_of_call(name: str) -> str:
    """Returns what the user has called; `name` if it was that function itself."""
    return _called.get() or name


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = {},  # noqa: B006 - the default of Horovod; it is not changed
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Sequence[str] | set[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Runs fn(*args, **kwargs) in `num_proc` Spark tasks at a time; returns the results in rank order.

    `num_proc`: by default as many as Spark's default parallelism. `start_timeout`: how long all tasks may take to
    start, in seconds; by default HOROVOD_SPARK_START_TIMEOUT. `env`: variables of the ranks, over those of their tasks.
    `stdout`, `stderr`: objects of the driver that the ranks' output is written to; by default sys.stdout and
    sys.stderr. `verbose`: 0, only the ranks' output; 1, also how the start goes on; 2, more. `nics`: names of the
    network interfaces to be used. `executable`: the Python of the ranks, a path on the executors; by default that of
    their tasks. `use_gloo` changes nothing. The function calls init() itself.

    Blocks until the job has ended. Raises the first exception that a rank raised, caused by its traceback as text;
    RuntimeError if a rank ended otherwise, or Spark ended its task, with the cause; TimeoutError if the tasks did not
    start in time; TypeError for a function or arguments that cannot be pickled. KeyboardInterrupt ends the job first.
    """
    tracebacks.install()
    name = name_of_call(_NAME)
    if use_mpi:
        raise NotImplementedError(
            f"{name}: use_mpi is not supported: mpirun cannot start processes in Spark tasks\n"
            "hint: leave use_mpi out; the ranks then find each other as with use_gloo"
        )
    if extra_mpi_args:
        warnings.warn(f"{name}: extra_mpi_args has no effect: the ranks are not started by mpirun", stacklevel=2)
    interface = _checked(num_proc, nics, name)
    task = _pickled(fn, args, kwargs, name)
    job = _Job(name, num_proc, env, verbose, stdout, stderr)
    return job.run(
        task,
        start_timeout,
        elastic=None,
        python=executable or "",
        interface=interface,
        timestamps=prefix_output_with_timestamp,
    )


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = {},  # noqa: B006 - as above
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Sequence[str] | set[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Runs fn(*args, **kwargs), which trains elastically (docs/elastic.md), in Spark tasks that may be lost.

    It begins when `num_proc` tasks run, and goes on while at least `min_num_proc` are left, with `max_num_proc` at
    most; both are by default num_proc. If Spark starts a task in place of a lost one (spark.task.maxFailures), its
    worker joins. `elastic_timeout`: how long the job waits for enough tasks after a loss, in seconds; by default
    HOROVOD_ELASTIC_TIMEOUT. `reset_limit`: after how many losses and joins it ends. The others: see `run`.

    Returns the results of the last world's ranks, in rank order. Raises as `run`, but for no error that the job has
    survived.
    """
    tracebacks.install()
    for old, new, value in (("min_np", "min_num_proc", min_np), ("max_np", "max_num_proc", max_np)):
        if value is not None:
            warnings.warn(f"{_ELASTIC}: {old} is deprecated, use {new}", DeprecationWarning, stacklevel=2)
    interface = _checked(num_proc, nics, _ELASTIC)
    task = _pickled(fn, args, kwargs, _ELASTIC)
    job = _Job(_ELASTIC, num_proc, env, verbose, stdout, stderr)
    return job.run(
        task,
        start_timeout,
        elastic=job.rules(min_num_proc or min_np, max_num_proc or max_np, reset_limit, elastic_timeout),
        python="",
        interface=interface,
        timestamps=prefix_output_with_timestamp,
    )


def _checked(num_proc: int | None, nics: Sequence[str] | set[str] | None, name: str) -> str:
    """The network interfaces, with commas. Raises ValueError for what cannot be right."""
    if num_proc is not None and num_proc < 1:
        raise ValueError(f"{name}: num_proc is {num_proc}, expected at least 1")
    interface = ",".join(sorted(nics or ()))
    if interface:
        interface_address(interface)  # raises for a name that is not there
    return interface


def dumped_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> bytes:
    """A call of a user's function, pickled. Raises TypeError that names what cannot be; `name`: who was called."""
    parts = {"fn": fn, "args": tuple(args), "kwargs": dict(kwargs or {})}
    return dumps(tuple(parts.values()), "fn", parts, name)


def _pickled(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> bytes:
    return dumps({"path": sys.path, "call": dumped_call(fn, args, kwargs, name)}, "the call", name=name)


class _Job:
    """One call of `name`."""

    def __init__(
        self, name: str, size: int | None, env: Mapping[str, str] | None, verbose: int, stdout: Any, stderr: Any
    ) -> None:
        self._name = name
        self._session = active_session(name)
        self._environment = {name: str(value) for name, value in (env or {}).items()}
        self._settings = Settings.from_environment({**current_environment(), **self._environment})
        self._verbose = verbose
        self._stdout = sys.stdout if stdout is None else stdout
        self._stderr = sys.stderr if stderr is None else stderr
        self._size = self._session.default_size() if size is None else size
        if size is None:
            self._say(f"{counted(self._size, 'process', 'processes')}, inferred from spark.default.parallelism")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    def rules(
        self, least: int | None, most: int | None, reset_limit: int | None, timeout_s: float | None
    ) -> dict[str, Any]:
        """The rules of an elastic job (launcher/function/supervised.py). Raises ValueError."""
        least, most = least or self._size, most or self._size
        if not 1 <= least <= self._size <= most:
            raise ValueError(
                f"{self._name}: min_num_proc is {least}, num_proc is {self._size}, max_num_proc is {most}\n"
                "hint: choose min_num_proc <= num_proc <= max_num_proc"
            )
        timeout_s = self._settings.elastic_timeout_s if timeout_s is None else float(timeout_s)
        return {"np": self._size, "min_np": least, "max_np": most, "reset_limit": reset_limit, "timeout_s": timeout_s}

    def run(
        self,
        task: bytes | Callable[[list[dict[str, Any]]], bytes],
        start_timeout: float | None,
        elastic: dict[str, Any] | None,
        frame: Any = None,
        **plan: Any,
    ) -> list[Any]:
        """`task`, if it is a function: gets what the tasks say, in rank order. `frame`: gives the tasks its rows."""
        session, in_task = self._session, self._settings.spark_supervisor == "task"
        limit_s = self._settings.spark_start_timeout_s if start_timeout is None else float(start_timeout)
        begun = time.monotonic()
        session.refuse(self._name, in_task, elastic is not None, frame is not None)
        wait_for_slots(self._size, session.master, session.conf, session.slots, begun + limit_s, self._say_slots)
        _warn_of_open_network(session.master, session.conf)
        if session.is_on_this_machine and not plan["interface"]:
            plan["interface"] = "lo"
        plan |= {"secret": new_secret(), "environment": self._environment, "verbose": self._verbose}
        plan["start_timeout_s"] = limit_s
        if in_task:
            assert isinstance(task, bytes)
            return self._run_in_task(task, begun, plan)
        places = self._size if elastic is None else elastic["max_np"]

        def begin(_: Supervised, port: int) -> SparkJob:
            spark = session.job(next(_numbers), places, elastic is None and not session.is_dynamic, frame)
            addresses = session.addresses(plan["interface"])
            spark.start(task_of(addresses, port, plan["secret"], elastic is not None, session.unreachable))
            return spark

        assembly = Assembly(self._name, self._size, self._say, self._settings.spark_local_rank_gpu, elastic)
        return assembly.results(assembly.run(task, self._stdout, self._stderr, begin, answer_of, begun, plan))

    def _run_in_task(self, task: bytes, begun: float, plan: dict[str, Any]) -> list[Any]:
        """The supervising process is in task 0, which brings what it has as rows (task/supervise.py)."""
        self._say("what the ranks print comes at the end (HOROVOD_SPARK_SUPERVISOR=task); task 0 also logs it")
        spark = self._session.job(next(_numbers), self._size, True)
        rules = {"name": self._name, "size": self._size, "local_rank_gpu": self._settings.spark_local_rank_gpu}
        try:
            spark.start(supervised_task_of({"task": task, "plan": plan, **rules}))
            self._wait(spark, begun, plan["start_timeout_s"])
        finally:
            spark.cancel(SPARK_END_S)
        if spark.error is not None:
            raise RuntimeError(f"{self._name}: {spark.why()}")
        came = Came(spark.rows)
        for stream, text in came.output:
            put(self._stdout if stream == "stdout" else self._stderr, text)
        return came.results(self._name, self._size)

    def _wait(self, spark: SparkJob, begun: float, limit_s: float) -> None:
        """Until Spark's job has ended. Raises TimeoutError if its tasks do not start in time."""
        tell_at, runs = begun + PROGRESS_S, False
        with selectors.DefaultSelector() as selector:
            selector.register(spark, selectors.EVENT_READ)
            while not selector.select(None if runs else _LOOK_S):
                runs, now = spark.runs(), time.monotonic()
                if not runs and now >= begun + limit_s:
                    raise TimeoutError(late(0, self._size, limit_s))
                if not runs and now >= tell_at:
                    tell_at = now + PROGRESS_S
                    self._say(progress(0, self._size, now - begun, limit_s))

    # texts

    def _say(self, text: str) -> None:
        if self._verbose:
            put(self._stderr, f"horovod.spark: {text}\n")

    def _say_slots(self, slots: int) -> None:
        self._say(f"{self._size} tasks need as many slots; Spark has {slots} now")


def _warn_of_open_network(master: str, conf: Mapping[str, str]) -> None:
    """The secret travels inside of Spark's tasks."""
    encrypted = any(conf.get(name, "false") == "true" for name in ("spark.network.crypto.enabled", "spark.ssl.enabled"))
    if not is_local(master) and not (conf.get("spark.authenticate", "false") == "true" and encrypted):
        warnings.warn(
            "horovod.spark.run: the job's secret reaches the executors by Spark's network, which is open\n"
            "hint: spark.authenticate=true and spark.network.crypto.enabled=true protect it",
            stacklevel=4,
        )
