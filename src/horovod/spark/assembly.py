# SPDX-License-Identifier: Apache-2.0
"""Collects the tasks of a job of horovod.spark.run, makes ranks of them, and follows them to the end.

Runs beside the process that supervises the job: in the driver, or in task 0 (task/supervise.py).
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from horovod import __version__
from horovod.core.wording import counted
from horovod.launcher.function.answers import memory, read, results, those_that_count
from horovod.launcher.function.supervised import Supervised
from horovod.launcher.job.supervision import Conclusion
from horovod.settings import environment_of
from horovod.spark import gpus
from horovod.world.network import LOOPBACK, own_addresses
from horovod.world.topology import places_of, ranks_text

__all__ = ["PROGRESS_S", "SPARK_END_S", "Assembly", "Ended", "OfSpark", "addresses_on", "late", "progress"]

PROGRESS_S = 10.0
SPARK_END_S = 15.0  # for Spark to tell what has become of an executor, or to end a job whose ranks have ended
_ELASTIC_END_S = 3.0  # tasks that Spark has started anew, and that find no job, would be started again and again
_TERMS = {
    "hosts": "tasks",
    "start_timeout": "start_timeout",
    "init_timeout": "HOROVOD_START_TIMEOUT in env",
    "interface": "nics",
    "program": "executable names a Python by its path on all executors; without it, ranks run that of their tasks",
}

_Answer = TypeVar("_Answer")


class OfSpark(Protocol):
    """Spark's job (job.py). Its descriptor becomes readable when it has ended."""

    error: Exception | None

    def fileno(self) -> int: ...

    @property
    def was_cancelled(self) -> bool: ...

    def why(self) -> str: ...

    def wait(self, limit_s: float) -> None: ...

    def cancel(self, limit_s: float) -> None: ...


class Ended(NamedTuple, Generic[_Answer]):
    """The end of the process that supervised the job: the answers by rank, its exit code, and the cause."""

    answers: list[_Answer]
    code: int
    conclusion: Conclusion


class Assembly:
    """The tasks of one job of `name`."""

    def __init__(
        self,
        name: str,
        size: int,
        say: Callable[[str], object],
        local_rank_gpu: bool = False,
        elastic: dict[str, Any] | None = None,
    ) -> None:
        """`say` gets how the start goes on. `elastic`: an elastic job's rules (launcher/function/supervised.py)."""
        self._name = name
        self._size = size
        self._say = say
        self._local_rank_gpu = local_rank_gpu
        self._elastic = elastic
        self._here: dict[int, dict[str, Any]] = {}  # the tasks that have come, by index
        self._refused: dict[int, dict[str, Any]] = {}  # those of another version
        self._started = False
        self._make_task: Callable[[list[dict[str, Any]]], object] | None = None  # writes the ranks' task
        self._spark: OfSpark | None = None
        self._order: list[dict[str, Any]] = []  # the tasks by rank, once a job has started that is not elastic
        self._names: list[str] = []  # of their agents

    @property
    def hosts(self) -> list[str]:
        """By rank."""
        return [one["hostname"] for one in self._order]

    def run(
        self,
        task: bytes | Callable[[list[dict[str, Any]]], bytes],
        stdout: Any,
        stderr: Any,
        begin: Callable[[Supervised, int], OfSpark | None],
        take: Callable[[int, str], _Answer],
        begun: float,
        plan: dict[str, Any],
    ) -> Ended[_Answer]:
        """Supervises the job to its end.

        `task`: the pickled call of the ranks, or a function that makes it from the tasks' reports in rank order.
        `begin` gets the port that the tasks come to, and starts Spark's job, unless this runs inside of it. `take` gets
        each rank and the file with its answer. `begun`: since when start_timeout counts. `plan`: of launcher/function/
        supervised.py.
        """
        places = self._size if self._elastic is None else self._elastic["max_np"]
        with contextlib.ExitStack() as stack:
            paths = memory(stack, ["task", *(f"result-{rank}" for rank in range(places)), "conclusion"])
            if isinstance(task, bytes):
                Path(paths[0]).write_bytes(task)
            else:
                self._make_task = lambda tasks: Path(paths[0]).write_bytes(task(tasks))
            files = {"task": paths[0], "answers": paths[1:-1], "conclusion": paths[-1]}
            plan = {**plan, "size": places, "elastic": self._elastic, "terms": _TERMS}
            supervised = Supervised(stdout, stderr, **files, **plan)
            spark = None
            try:
                listens = next(iter(supervised.events()), None)
                if listens is None:
                    raise RuntimeError(
                        f"{self._name}: the process that supervises the job has ended unexpectedly\n"
                        "hint: read its last lines on stderr"
                    )
                spark = self._spark = begin(supervised, listens["port"])
                self._lead(supervised, spark, begun, plan["start_timeout_s"])
                code = supervised.wait()
                if spark is not None:
                    spark.wait(SPARK_END_S if self._elastic is None else _ELASTIC_END_S)
            except BaseException:
                supervised.end()
                try:
                    supervised.wait()
                finally:  # even if Ctrl-C comes once more
                    if spark is not None:
                        spark.cancel(SPARK_END_S)
                raise
            if spark is not None:
                spark.cancel(SPARK_END_S)
            return Ended([take(rank, path) for rank, path in enumerate(paths[1:-1])], code, read(paths[-1]))

    def _lead(self, supervised: Supervised, spark: OfSpark | None, begun: float, limit_s: float) -> None:
        """Returns when the supervising process has ended. Raises if the job cannot start, or Spark cancels it."""
        tell_at = begun + PROGRESS_S
        give_up_at: float | None = None  # once Spark's job has failed
        with selectors.DefaultSelector() as selector:
            selector.register(supervised, selectors.EVENT_READ)
            if spark is not None:
                selector.register(spark, selectors.EVENT_READ)
            while not supervised.ended:
                times = [give_up_at] if self._started else [begun + limit_s, tell_at, give_up_at]
                left = [at - time.monotonic() for at in times if at is not None]
                ready = [key.fileobj for key, _ in selector.select(max(0.0, min(left)) if left else None)]
                if supervised in ready:
                    for event in supervised.events():
                        self._on_event(event, supervised)
                if spark is not None and spark in ready:
                    selector.unregister(spark)
                    if spark.error is None and self._make_task is not None and not self._here:
                        self._make_task([])  # Spark starts no task for a DataFrame that it knows to be empty
                    if spark.error is not None and (not self._started or self._elastic or spark.was_cancelled):
                        raise self._failed(spark)
                    give_up_at = time.monotonic() + SPARK_END_S
                now = time.monotonic()
                if spark is not None and give_up_at is not None and now >= give_up_at:
                    raise self._failed(spark)
                if not self._started and now >= begun + limit_s:
                    raise TimeoutError(self._late(limit_s))
                if not self._started and now >= tell_at:
                    tell_at = now + PROGRESS_S
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
        seen = gpus.assign(given, self._local_rank_gpu, self._name)
        environments = {
            name: {
                **environment_of(spark_devices=",".join(one.own) or None),
                **({"CUDA_VISIBLE_DEVICES": one.visible} if one.visible else {}),
            }
            for name, one in zip(names, seen, strict=True)
        }
        agents = {one["number"]: name for one, name in zip(self._order, names, strict=True)}
        supervised.order("start", agents=agents, names=names, places=places, environments=environments)

    def results(self, ended: Ended[Any]) -> list[Any]:
        """The values in rank order. Raises the error that says why there are none."""
        answers, code, end = ended
        failed = [answer for answer in answers if answer is not None and answer.error is not None]
        complete = not failed and None not in answers if self._elastic is None else end.has_trained
        # A rank's own error goes before what Spark says of the executors, which goes before what their loss causes.
        spark = self._spark
        is_of_peers = all(answer.is_of_peers for answer in failed)
        if spark is not None and spark.error is not None and not complete and is_of_peers:
            raise self._failed(spark, end)
        if self._elastic is not None:
            return results(those_that_count(answers, code, end, self._name), code, end.text, self._name)
        return results(answers, code, end.text, self._name, self.hosts, peers=False)

    def _failed(self, spark: OfSpark, end: Conclusion | None = None) -> RuntimeError:
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

    def _progress(self, seconds: float, limit_s: float) -> str:
        hosts = [one["hostname"] for one in self._here.values()]
        where = " ".join(f"{host}:{hosts.count(host)}" for host in dict.fromkeys(hosts))
        return progress(len(hosts), self._size, seconds, limit_s, f" (hosts {where})" if where else "")

    def _late(self, limit_s: float) -> str:
        here = [f"task {index} on {one['hostname']}" for index, one in sorted(self._here.items())]
        return late(len(here), self._size, limit_s, ": " + ", ".join(here) if here else "")

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


def addresses_on(interface: str, named: str | None = None) -> list[str]:
    """Where tasks look for this process, the best first. `named`: what Spark calls this machine, if it does."""
    if interface == "lo":
        return [LOOPBACK]
    return list(dict.fromkeys([*([named] if named else []), *own_addresses()]))


def progress(count: int, size: int, seconds: float, limit_s: float, where: str = "") -> str:
    return (
        f"{count} of {counted(size, 'task')} are ready after {seconds:.0f} s{where}; the job fails if the others are "
        f"not in {limit_s - seconds:.0f} s (start_timeout)"
    )


def late(count: int, size: int, limit_s: float, where: str = "") -> str:
    return (
        f"Timed out waiting for Spark tasks to start: {count} of {counted(size, 'task')} came within {limit_s:g} s"
        f"{where}\nhint: each rank needs a Spark task of its own: free as many slots, or raise start_timeout so that "
        "the cluster can start executors"
    )


def _by_host(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks in rank order: the ranks of a host are neighbours, and the host of task 0 comes first."""
    tasks = sorted(tasks, key=lambda one: int(one["index"]))
    hosts = list(dict.fromkeys((one["hostname"], one["machine"]) for one in tasks))
    return sorted(tasks, key=lambda one: hosts.index((one["hostname"], one["machine"])))
