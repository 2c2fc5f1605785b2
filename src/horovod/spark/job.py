# SPDX-License-Identifier: Apache-2.0
"""The Spark job of horovod.spark.run: one task for each rank, in a job group of its own."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["SparkJob", "active_context", "reason_in"]

_CANCEL_S = 0.5
_FAILED = "Spark job has failed"
_OWN = re.compile(
    r"RuntimeError: horovod\.spark\.run: (.+?)\s*(?:\n\s*\n|\n\s+at |\n SQLSTATE|\Z)", re.DOTALL
)  # of a task (_task)
_LOST = re.compile(r"ExecutorLostFailure \(executor (\S+) .*?\) Reason: (.+)")
_KILLED = re.compile(r"TaskKilled \((.+)\)")
_RAISED = re.compile(
    r"^((?:\w+\.)*\w+(?:Error|Exception): .+)(?:\n\s*(?:SQLSTATE: \w+)?$|\Z)", re.MULTILINE
)  # the end of a traceback of Python's
_OF_STAGE = re.compile(r"finished unsuccessfully\.\n(?:(?:\w+\.)+\w+: )?(.+)")
_OF_SPARK = re.compile(r":? ?org\.apache\.spark\.\w*Exception: (?:\[\w+\] )?(.+?)(?: SQLSTATE: \w+)?$")


def active_context(name: str) -> Any:
    """The SparkContext of this process. Raises RuntimeError if there is none; `name`: of the function that asks."""
    try:
        from pyspark.sql.utils import is_remote
    except ImportError as error:
        raise ImportError(f"{name} needs pyspark: {error}\nhint: pip install pyspark") from None
    if is_remote():
        raise NotImplementedError(
            f"{name} does not work with Spark Connect yet: a Connect client has no SparkContext\n"
            "hint: run the script with a classic session, by spark-submit or SparkSession.builder.master(...)"
        )
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # The active session is a thread's own. There is no public way to ask for the context without making one.
    session = SparkSession.getActiveSession()
    context = session.sparkContext if session is not None else getattr(SparkContext, "_active_spark_context", None)
    if context is None:
        raise RuntimeError(
            f"Could not find an active SparkContext: {name} runs in a PySpark session\n"
            "hint: spark = pyspark.sql.SparkSession.builder.getOrCreate()"
        )
    return context


class SparkJob:
    """Runs in a thread of its own from `start` on. Its descriptor becomes readable when it has ended."""

    def __init__(self, context: Any, number: int, size: int, barrier: bool, frame: Any = None) -> None:
        """`barrier`: all tasks at once, or none; Spark then starts no task again.

        `frame`: a DataFrame whose rows go to the tasks.
        """
        self.error: Exception | None = None
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
        return self.error is not None and "cancelled" in str(self.error)

    def why(self) -> str:
        """Why it has failed, in words."""
        return reason_in(str(self.error))

    def start(self, addresses: list[str], port: int, secret: bytes, elastic: bool) -> None:
        from pyspark import InheritableThread

        task = _task(addresses, port, secret, elastic)
        self._thread = InheritableThread(target=self._run, args=(task,), daemon=True)
        self._thread.start()

    def wait(self, limit_s: float) -> None:
        """Until it has ended, but not longer than this."""
        self._thread.join(limit_s)

    def cancel(self, limit_s: float) -> None:
        """Ends it, if it has not ended, and frees what it holds."""
        until = time.monotonic() + limit_s
        while self._thread.is_alive() and time.monotonic() < until:
            self._context.cancelJobGroup(self._group)  # again and again: Spark may not have got the job yet
            self._thread.join(_CANCEL_S)
        os.close(self._woken)

    def _run(self, task: Callable[..., Any]) -> None:
        try:
            self._context.setJobGroup(self._group, "horovod.spark.run", interruptOnCancel=True)
            if self._frame is not None:
                rows = self._frame.repartition(self._size)
                rows.mapInArrow(_with_rows(task), "nothing long", barrier=self._barrier).collect()
                return
            tasks = self._context.parallelize(range(self._size), self._size)
            (tasks.barrier() if self._barrier else tasks).mapPartitionsWithIndex(task).collect()
        except Exception as error:  # Spark's and py4j's, whatever they are
            self.error = error
        finally:
            os.close(self._waker)


def _task(addresses: list[str], port: int, secret: bytes, elastic: bool) -> Callable[..., Any]:
    """Returns the function of a task. It is pickled by value, and imports inside, to tell what its Python lacks."""

    def task(index: int, _: Iterator[Any], rows: Iterator[Any] | None = None) -> Iterator[Any]:
        try:
            from horovod.spark.task.relay import relay
        except ImportError as error:
            import socket
            import sys

            raise RuntimeError(
                f"horovod.spark.run: the Python of host {socket.gethostname()} lacks hvd: {sys.executable} (Python "
                f"{'.'.join(map(str, sys.version_info[:3]))}): {error}\n"
                "hint: install hvd there, or let spark.pyspark.python name a Python that has it; --archives ships one"
            ) from None
        relay(index, addresses, port, secret, elastic, rows)
        return iter(())

    return task


def _with_rows(task: Callable[..., Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The same for mapInArrow, which gives a function the record batches of its partition."""

    def map_batches(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        return task(context.partitionId(), iter(()), batches)

    return map_batches


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
