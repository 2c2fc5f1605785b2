# SPDX-License-Identifier: Apache-2.0
"""horovod.spark.run: a Python function as a job whose ranks run in Spark tasks.

    results = horovod.spark.run(train, args=(0.1,), num_proc=4)

The driver starts a process that supervises the job (launcher/function/supervised.py), and a Spark job of one task a
rank. Each task starts the launcher's agent on its executor, and carries its pipes to that process (task/relay.py). From
there on it is a job like horovodrun's: one cause if it fails, all output at the driver, nothing left behind. The
function and its results do not pass through Spark (launcher/function/exchange.py).
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod import __version__
from horovod.core import tracebacks
from horovod.core.exceptions import HorovodInternalError
from horovod.core.wording import counted
from horovod.launcher.function.answers import answer_of, memory, read, results, those_that_count
from horovod.launcher.function.run_task import dumps
from horovod.launcher.function.supervised import Supervised, put
from horovod.launcher.job.supervision import Conclusion
from horovod.settings import Settings, current_environment, environment_of
from horovod.spark import gpus
from horovod.spark.job import SparkJob, active_context
from horovod.spark.slots import is_local, slots_now, wait_for_slots
from horovod.world.network import interface_address, own_addresses
from horovod.world.secret import new_secret
from horovod.world.topology import places_of, ranks_text

__all__ = ["run", "run_elastic"]

_NAME = "horovod.spark.run"
_ELASTIC = "horovod.spark.run_elastic"
_PROGRESS_S = 10.0
_SPARK_END_S = 15.0  # for Spark to tell what has become of an executor, or to end a job whose ranks have ended
_ELASTIC_END_S = 3.0  # tasks that Spark has started anew, and that find no job, would be started again and again
_numbers = itertools.count()


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
    if use_mpi:
        raise NotImplementedError(
            f"{_NAME}: use_mpi is not supported: mpirun cannot start processes in Spark tasks\n"
            "hint: leave use_mpi out; the ranks then find each other as with use_gloo"
        )
    if extra_mpi_args:
        warnings.warn(f"{_NAME}: extra_mpi_args has no effect: the ranks are not started by mpirun", stacklevel=2)
    interface = _checked(num_proc, nics, _NAME)
    task = _pickled(fn, args, kwargs, _NAME)
    job = _Job(_NAME, num_proc, env, verbose, stdout, stderr)
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


def _pickled(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> bytes:
    parts = {"func": fn, "args": tuple(args), "kwargs": dict(kwargs or {})}
    call = dumps(tuple(parts.values()), "func", parts, name)
    return dumps({"path": sys.path, "call": call}, "func", name=name)


class _Job:
    """One call of `name`."""

    def __init__(
        self, name: str, size: int | None, env: Mapping[str, str] | None, verbose: int, stdout: Any, stderr: Any
    ) -> None:
        self._name = name
        self._context = context = active_context(name)
        self._conf = dict(context.getConf().getAll())
        self._environment = {name: str(value) for name, value in (env or {}).items()}
        self._settings = Settings.from_environment({**current_environment(), **self._environment})
        self._verbose = verbose
        self._stdout = sys.stdout if stdout is None else stdout
        self._stderr = sys.stderr if stderr is None else stderr
        self._size = context.defaultParallelism if size is None else size
        if size is None:
            self._say(f"{counted(self._size, 'process', 'processes')}, inferred from spark.default.parallelism")
        self._here: dict[int, dict[str, Any]] = {}  # the tasks that have come, by index
        self._refused: dict[int, dict[str, Any]] = {}  # those of another version
        self._started = False
        self._elastic: dict[str, Any] | None = None
        self._make_task: Callable[[list[dict[str, Any]]], object] | None = None  # writes the ranks' task
        self._order: list[dict[str, Any]] = []  # the tasks by rank, once a job has started that is not elastic
        self._names: list[str] = []  # of their agents

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
        self._elastic = elastic
        places = self._size if elastic is None else elastic["max_np"]
        limit_s = self._settings.spark_start_timeout_s if start_timeout is None else float(start_timeout)
        begun = time.monotonic()
        deadline = begun + limit_s
        master = self._context.master
        wait_for_slots(self._size, master, self._conf, lambda: slots_now(self._context), deadline, self._say_slots)
        _warn_of_open_network(master, self._conf)
        secret = new_secret()
        with contextlib.ExitStack() as stack:
            paths = memory(stack, ["task", *(f"result-{rank}" for rank in range(places)), "conclusion"])
            if isinstance(task, bytes):
                Path(paths[0]).write_bytes(task)
            else:
                self._make_task = lambda tasks: Path(paths[0]).write_bytes(task(tasks))
            if is_local(master) and not plan["interface"]:
                plan["interface"] = "lo"
            supervised = Supervised(
                self._stdout,
                self._stderr,
                secret=secret,
                size=places,
                elastic=elastic,
                environment=self._environment,
                task=paths[0],
                answers=paths[1:-1],
                conclusion=paths[-1],
                verbose=self._verbose,
                start_timeout_s=limit_s,
                **plan,
            )
            spark: SparkJob | None = None
            try:
                listens = next(iter(supervised.events()), None)
                if listens is None:
                    raise RuntimeError(
                        f"{self._name}: the process that supervises the job has ended: see its words on stderr"
                    )
                barrier = elastic is None and not self._is_dynamic()
                spark = SparkJob(self._context, next(_numbers), places, barrier, frame)
                spark.start(self._addresses(master, plan["interface"]), listens["port"], secret, elastic is not None)
                self._lead(supervised, spark, begun, limit_s)
                code = supervised.wait()
                spark.wait(_SPARK_END_S if elastic is None else _ELASTIC_END_S)
            except BaseException:
                supervised.end()
                try:
                    supervised.wait()
                finally:  # even if Ctrl-C comes once more
                    if spark is not None:
                        spark.cancel(_SPARK_END_S)
                raise
            spark.cancel(_SPARK_END_S)
            answers = [answer_of(rank, path) for rank, path in enumerate(paths[1:-1])]
            end = read(paths[-1])
        return self._results(answers, code, end, spark)

    def _is_dynamic(self) -> bool:
        """True if executors come and go, with which Spark has no barriers.

        With a barrier, two jobs that each have half of their slots do not wait for each other.
        """
        return str(self._conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"

    def _addresses(self, master: str, interface: str) -> list[str]:
        """Where the tasks look for the driver, the best first."""
        if interface == "lo":
            return ["127.0.0.1"]
        named = self._conf.get("spark.driver.host")
        return list(dict.fromkeys([*([named] if named else []), *own_addresses()]))

    def _lead(self, supervised: Supervised, spark: SparkJob, begun: float, limit_s: float) -> None:
        """Returns when the supervising process has ended. Raises if the job cannot start, or Spark cancels it."""
        tell_at = begun + _PROGRESS_S
        give_up_at: float | None = None  # once Spark's job has failed
        with selectors.DefaultSelector() as selector:
            selector.register(supervised, selectors.EVENT_READ)
            selector.register(spark, selectors.EVENT_READ)
            while not supervised.ended:
                times = [give_up_at] if self._started else [begun + limit_s, tell_at, give_up_at]
                left = [at - time.monotonic() for at in times if at is not None]
                ready = [key.fileobj for key, _ in selector.select(max(0.0, min(left)) if left else None)]
                if supervised in ready:
                    for event in supervised.events():
                        self._on_event(event, supervised)
                if spark in ready:
                    selector.unregister(spark)
                    if spark.error is None and self._make_task is not None and not self._here:
                        self._make_task([])  # Spark starts no task for a DataFrame that it knows to be empty
                    if spark.error is not None and (not self._started or self._elastic or spark.was_cancelled):
                        raise self._failed(spark)
                    give_up_at = time.monotonic() + _SPARK_END_S
                now = time.monotonic()
                if give_up_at is not None and now >= give_up_at:
                    raise self._failed(spark)
                if not self._started and now >= begun + limit_s:
                    raise TimeoutError(self._late(limit_s))
                if not self._started and now >= tell_at:
                    tell_at = now + _PROGRESS_S
                    self._say(self._progress(now - begun, limit_s))

    def _on_event(self, event: dict[str, Any], supervised: Supervised) -> None:
        if self._started:
            return  # one more that has come: the supervising process deals with it
        index = event["index"]
        if event["event"] == "came":
            self._here[index] = event
        elif event["event"] == "left":
            if self._here.get(index, event)["number"] == event["number"]:
                self._here.pop(index, None)
        elif event["version"] != __version__:
            self._refused[index] = event
        if len(self._here) + len(self._refused) < self._size:
            return
        if self._refused:
            raise RuntimeError(self._of_other_versions())
        self._started = True
        if self._elastic is not None:
            supervised.order("start", agents=None)
            return
        self._order = _by_host(list(self._here.values()))
        if self._make_task is not None:
            self._make_task(self._order)
        places = places_of(self._order)
        self._names = names = [
            f"task {one['index']} on {place['hostname']}" for one, place in zip(self._order, places, strict=True)
        ]
        given = [
            gpus.TaskGpus(place["hostname"], tuple(one["gpus"]), one["visible_gpus"])
            for one, place in zip(self._order, places, strict=True)
        ]
        seen = gpus.assign(given, self._settings.spark_local_rank_gpu)
        environments = {
            name: {
                **environment_of(spark_devices=",".join(one.own) or None),
                **({"CUDA_VISIBLE_DEVICES": one.visible} if one.visible else {}),
            }
            for name, one in zip(names, seen, strict=True)
        }
        agents = {one["number"]: name for one, name in zip(self._order, names, strict=True)}
        supervised.order("start", agents=agents, names=names, places=places, environments=environments)

    def _results(self, answers: list[Any], code: int, end: Any, spark: SparkJob) -> list[Any]:
        errors = [answer.error for answer in answers if answer is not None and answer.error is not None]
        complete = not errors and None not in answers if self._elastic is None else end.has_trained
        # A rank's own error goes before what Spark says of the executors, which goes before what their loss causes.
        if spark.error is not None and not complete and all(isinstance(one, HorovodInternalError) for one in errors):
            raise self._failed(spark, end)
        if self._elastic is not None:
            return results(those_that_count(answers, code, end, self._name), code, end.text, self._name)
        hosts = [one["hostname"] for one in self._order]
        return results(answers, code, end.text, self._name, hosts, peers=False)

    def _failed(self, spark: SparkJob, end: Conclusion | None = None) -> RuntimeError:
        """The error for a job that Spark has ended."""
        text = f"{self._name}: {spark.why()}"
        if end is not None and end.lost:
            # The first one's executor: Spark itself ends the tasks of the others then.
            executors = [(one["hostname"], one["executor"]) for one in self._order]
            first = executors[self._names.index(end.lost[0])]
            ranks = [rank for rank, name in enumerate(self._names) if name in end.lost and executors[rank] == first]
            text += f"; {ranks_text(ranks)} on {first[0]} ended with it"
        return RuntimeError("\n".join([text, *([end.text] if end is not None and end.text else [])]))

    # texts

    def _say(self, text: str) -> None:
        if self._verbose:
            put(self._stderr, f"horovod.spark: {text}\n")

    def _say_slots(self, slots: int) -> None:
        self._say(f"{self._size} tasks need as many slots; Spark has {slots} now")

    def _progress(self, seconds: float, limit_s: float) -> str:
        hosts = [one["hostname"] for one in self._here.values()]
        where = " ".join(f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
        return (
            f"{len(hosts)} of {counted(self._size, 'task')} run after {seconds:.0f} s"
            f"{f' (hosts {where})' if where else ''}; the job ends in {limit_s - seconds:.0f} s (start_timeout)"
        )

    def _late(self, limit_s: float) -> str:
        here = [f"task {index} on {one['hostname']}" for index, one in sorted(self._here.items())]
        return (
            f"Timed out waiting for Spark tasks to start: {len(here)} of {counted(self._size, 'task')} came within "
            f"{limit_s:g} s{': ' + ', '.join(here) if here else ''}\n"
            "hint: each process needs a Spark task of its own: does Spark have so many free slots? A larger "
            "start_timeout gives a cluster time to start executors"
        )

    def _of_other_versions(self) -> str:
        others = f"{len(self._refused)} of {counted(self._size, 'task')}"
        lines = [
            f"  host {one['hostname']} has hvd {one['version']} in {one['python']}" for one in self._refused.values()
        ]
        return "\n".join(
            [
                f"{self._name}: the driver has hvd {__version__}, but {others} have another version",
                *dict.fromkeys(lines),
                f"hint: install hvd {__version__} into the Python of the executors; spark.pyspark.python names another "
                "one",
            ]
        )


def _by_host(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks in rank order: the ranks of a host are neighbours, and the host of task 0 comes first."""
    tasks = sorted(tasks, key=lambda one: int(one["index"]))
    hosts = list(dict.fromkeys((one["hostname"], one["machine"]) for one in tasks))
    return sorted(tasks, key=lambda one: hosts.index((one["hostname"], one["machine"])))


def _warn_of_open_network(master: str, conf: Mapping[str, str]) -> None:
    """The secret travels inside of Spark's tasks."""
    encrypted = any(conf.get(name, "false") == "true" for name in ("spark.network.crypto.enabled", "spark.ssl.enabled"))
    if not is_local(master) and not (conf.get("spark.authenticate", "false") == "true" and encrypted):
        warnings.warn(
            "horovod.spark.run: the job's secret reaches the executors by Spark's network, which is open\n"
            "hint: spark.authenticate=true and spark.network.crypto.enabled=true protect it",
            stacklevel=4,
        )
