# SPDX-License-Identifier: Apache-2.0
"""The Spark job of horovod.spark.run: one task for each rank, in a job group of its own."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from horovod import __version__
from horovod.spark.task.outcome import Row

__all__ = [
    "SCHEMA",
    "SparkJob",
    "Task",
    "active_context",
    "in_arrow",
    "no_session",
    "reason_in",
    "supervised_task_of",
    "task_of",
    "tuples",
]

Task = Callable[[int, Iterator[Any] | None], Iterator[Row]]  # gets its index, and its rows of a DataFrame
SCHEMA = "kind string, number long, data binary"  # of rows

_CANCEL_S = 0.5
_FAILED = "Spark job has failed"
_CANCELLED = re.compile("cancell?ed", re.IGNORECASE)
_OWN = re.compile(
    r"RuntimeError: horovod\.spark\.run: (.+?)\s*(?:\n\s*\n|\n\s+at |\n SQLSTATE|\Z)", re.DOTALL
)  # of a task (_with_hvd)
_LOST = re.compile(r"ExecutorLostFailure \(executor (\S+) .*?\) Reason: (.+)")
_KILLED = re.compile(r"TaskKilled \((.+)\)")
_RAISED = re.compile(
    r"^((?:\w+\.)*\w+(?:Error|Exception): .+)(?:\n\s*(?:SQLSTATE: \w+)?$|\Z)", re.MULTILINE
)  # the end of a traceback of Python's
_OF_STAGE = re.compile(r"finished unsuccessfully\.\n(?:(?:\w+\.)+\w+: )?(.+)")
_OF_SPARK = re.compile(r":? ?\(?org\.apache\.spark\.\w*Exception[:)] (?:\[\w+\] )?(.+?)(?: SQLSTATE: \w+)?$")


def active_context(name: str) -> Any:
    """The SparkContext of this process. Raises RuntimeError if there is none; `name`: of the function that asks."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # The active session is a thread's own. There is no public way to ask for the context without making one.
    session = SparkSession.getActiveSession()
    context = session.sparkContext if session is not None else getattr(SparkContext, "_active_spark_context", None)
    if context is None:
        raise no_session(name)
    return context


def no_session(name: str) -> RuntimeError:
    return RuntimeError(
        f"Could not find an active SparkContext: {name} needs a Spark session, and this process has none\n"
        "hint: spark = pyspark.sql.SparkSession.builder.getOrCreate()"
    )


class SparkJob:
    """Runs in a thread of its own from `start` on. Its descriptor becomes readable when it has ended."""

    def __init__(self, context: Any, number: int, size: int, barrier: bool, frame: Any = None) -> None:
        """`barrier`: all tasks at once, or none; Spark then starts no task again.

        `frame`: a DataFrame whose rows go to the tasks.
        """
        self.error: Exception | None = None
        self.rows: list[Row] = []  # those of its tasks, once it has ended
        self._context = context
        self._group = f"horovod.spark.run.{number}"
        self._size = size
        self._barrier = barrier
        self._frame = frame
        self._woken, self._waker = os.pipe()
        self._thread: Any = None

    def fileno(self) -> int:
        return self._woken

    @property
    def was_cancelled(self) -> bool:
        return self.error is not None and _CANCELLED.search(str(self.error)) is not None

    def why(self) -> str:
        """Why it has failed, in words."""
        return reason_in(str(self.error))

    def runs(self) -> bool:
        """True if the tasks run (a barrier starts all of them together), or if Spark does not tell."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(number) for job in jobs if job is not None for number in job.stageIds]
        return any(stage.numActiveTasks for stage in stages if stage is not None)

    def start(self, task: Task) -> None:
        """`task`: see task_of and supervised_task_of."""
        from pyspark import InheritableThread

        self._thread = InheritableThread(target=self._run, args=(task,), daemon=True, **self._of_thread())
        self._thread.start()

    def wait(self, limit_s: float) -> None:
        """Until it has ended, but not longer than this."""
        self._thread.join(limit_s)

    def cancel(self, limit_s: float) -> None:
        """Ends it, if it has not ended, and frees what it holds."""
        until = time.monotonic() + limit_s
        while self._thread.is_alive() and time.monotonic() < until:
            self._interrupt()  # again and again: Spark may not have got the job yet
            self._thread.join(_CANCEL_S)
        os.close(self._woken)

    def _run(self, task: Task) -> None:
        try:
            self.rows = self._collect(task)
        except Exception as error:  # Spark's, py4j's and gRPC's, whatever they are
            self.error = error
        finally:
            os.close(self._waker)

    # Spark Connect has others (connect.py)

    def _of_thread(self) -> dict[str, Any]:
        return {}

    def _interrupt(self) -> None:
        self._context.cancelJobGroup(self._group)

    def _collect(self, task: Task) -> list[Row]:
        self._context.setJobGroup(self._group, "horovod.spark.run", interruptOnCancel=True)
        if self._frame is not None:
            found = self._frame.repartition(self._size)
            return tuples(found.mapInArrow(in_arrow(task, True), SCHEMA, barrier=self._barrier).collect())
        tasks = self._context.parallelize(range(self._size), self._size)

        def of_index(index: int, _: Iterator[Any]) -> Iterator[Row]:
            return task(index, None)

        rows: list[Row] = (tasks.barrier() if self._barrier else tasks).mapPartitionsWithIndex(of_index).collect()
        return rows


def task_of(addresses: list[str], port: int, secret: bytes, elastic: bool, unreachable: str) -> Task:
    """Returns the function of a task whose job is supervised in the driver. `unreachable`: the hint if that fails."""

    def task(index: int, rows: Iterator[Any] | None) -> Iterator[Row]:
        from horovod.spark.task.relay import relay

        relay(index, addresses, port, secret, elastic, f"the driver: {{}}\nhint: {unreachable}", rows)
        return iter(())

    return _with_hvd(task)


def supervised_task_of(plan: dict[str, Any]) -> Task:
    """Returns the function of a task of a job that task 0 supervises. `plan`: the arguments of supervise."""
    version = __version__

    def task(index: int, _: Iterator[Any] | None) -> Iterator[Row]:
        import socket
        import sys

        import horovod

        if horovod.__version__ != version:
            raise RuntimeError(
                f"horovod.spark.run: the driver has hvd {version}, but host {socket.gethostname()} has hvd "
                f"{horovod.__version__} in {sys.executable}\n"
                f"hint: install hvd {version} into the Python of the executors; spark.pyspark.python names another one"
            )
        from horovod.spark.task.supervise import supervise

        return supervise(index, **plan)

    return _with_hvd(task)


def _with_hvd(task: Task) -> Task:
    """Wraps a task, which is pickled by value. It imports hvd when it runs, so that an error names what is missing."""

    def run(index: int, rows: Iterator[Any] | None) -> Iterator[Row]:
        try:
            import horovod.spark.task.relay  # noqa: F401
        except ImportError as error:
            import socket
            import sys

            raise RuntimeError(
                f"horovod.spark.run: the Python of host {socket.gethostname()} lacks hvd: {sys.executable} (Python "
                f"{'.'.join(map(str, sys.version_info[:3]))}): {error}\n"
                "hint: install hvd there, or let spark.pyspark.python name a Python that has it; --archives ships one"
            ) from None
        return task(index, rows)

    return run


def in_arrow(task: Task, has_rows: bool) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns the task as a function for mapInArrow. With `has_rows`, the batches of its partition are its rows."""

    def map_batches(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for kind, number, data in task(context.partitionId(), batches if has_rows else None):
            yield pa.RecordBatch.from_pydict({"kind": [kind], "number": [number], "data": [data]})

    return map_batches


def tuples(rows: list[Any]) -> list[Row]:
    """Rows of SCHEMA."""
    return [(row.kind, row.number, bytes(row.data)) for row in rows]


def reason_in(text: str) -> str:
    """Why a Spark job has failed, from the text of the exception, which holds traces of the JVM and of Python."""
    if own := _OWN.search(text):
        return own[1]
    if lost := _LOST.search(text):
        return f"{_FAILED}: executor {lost[1]} was lost: {lost[2]}"
    if killed := _KILLED.search(text):
        return f"{_FAILED}: Spark ended a task: {killed[1]}"
    if raised := _RAISED.findall(text):
        return f"{_FAILED}: {raised[-1]}"
    if stage := _OF_STAGE.search(text):
        return f"{_FAILED}: {stage[1]}"
    lines = [line for line in text.splitlines() if line]
    said = next((one[1] for one in map(_OF_SPARK.match, lines) if one), lines[0])
    return f"{_FAILED}: {said}"
