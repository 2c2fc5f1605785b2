# SPDX-License-Identifier: Apache-2.0
"""The session that a job runs in: a classic one, or one of Spark Connect, whose client has neither context nor RDDs."""

from __future__ import annotations

import contextlib
from typing import Any

from horovod.launcher.options.hosts import is_local as is_own_host
from horovod.spark.assembly import addresses_on
from horovod.spark.job import SCHEMA, SparkJob, Task, active_context, in_arrow, no_session, tuples
from horovod.spark.slots import is_local, slots_now
from horovod.spark.task.outcome import Row

__all__ = ["ConnectSession", "Session", "active_session"]

_DYNAMIC = "spark.dynamicAllocation.enabled"
_CONF = ("spark.master", "spark.authenticate", "spark.network.crypto.enabled", "spark.ssl.enabled", _DYNAMIC)
_IN_TASK = "or set HOROVOD_SPARK_SUPERVISOR=task: then executors do not connect to the driver"


class Session:
    """A classic one."""

    unreachable = (
        f"set spark.driver.host to an address that executors reach, and open the driver's ports for them; {_IN_TASK}"
    )

    def __init__(self, context: Any) -> None:
        self.conf: dict[str, str] = dict(context.getConf().getAll())
        self.master: str = context.master
        self._context = context

    @property
    def is_dynamic(self) -> bool:
        """True if executors come and go, with which Spark has no barriers."""
        return str(self.conf.get(_DYNAMIC, "false")).lower() == "true"

    @property
    def is_on_this_machine(self) -> bool:
        """True if all executors are on the machine of this process."""
        return is_local(self.master)

    def addresses(self, interface: str) -> list[str]:
        """Where the tasks look for this process, the best first."""
        return addresses_on(interface, self.conf.get("spark.driver.host"))

    def default_size(self) -> int:
        """Spark's default parallelism: as a rule the number of cores."""
        return int(self._context.defaultParallelism)

    def slots(self) -> int | None:
        """How many tasks can run at a time; None if Spark does not tell."""
        return slots_now(self._context)

    def refuse(self, name: str, in_task: bool, elastic: bool, has_rows: bool) -> None:
        """Raises an error if a job cannot run so."""
        if in_task and (elastic or has_rows):
            why = "an elastic job outlives its tasks" if elastic else "the driver decides which rows a rank reads"
            raise ValueError(
                f"{name}: HOROVOD_SPARK_SUPERVISOR is task, but {why}\nhint: HOROVOD_SPARK_SUPERVISOR=driver"
            )
        if in_task and self.is_dynamic:
            raise ValueError(
                f"{name}: HOROVOD_SPARK_SUPERVISOR is task, which needs a barrier stage; Spark has none with "
                "spark.dynamicAllocation.enabled\nhint: HOROVOD_SPARK_SUPERVISOR=driver, or no dynamic allocation"
            )

    def job(self, number: int, size: int, barrier: bool, frame: Any = None) -> SparkJob:
        """`barrier`, `frame`: see SparkJob."""
        return SparkJob(self._context, number, size, barrier, frame)


class ConnectSession(Session):
    """One of Spark Connect."""

    unreachable = f"open the ports of this machine for the executors; {_IN_TASK}"

    def __init__(self, session: Any) -> None:
        self._session = session
        known = {name: session.conf.get(name, None) for name in _CONF}
        self.conf = {name: value for name, value in known.items() if value is not None}
        self.master = self.conf.get("spark.master", "")

    @property
    def is_on_this_machine(self) -> bool:
        host = getattr(self._session.client, "host", None)  # since Spark 4
        return is_local(self.master) and host is not None and is_own_host(host)

    def addresses(self, interface: str) -> list[str]:
        return addresses_on(interface, None)  # spark.driver.host is the server's

    def default_size(self) -> int:
        from pyspark.sql import functions

        numbers = self._session.range(1 << 16).select(functions.spark_partition_id().alias("number"))
        return int(numbers.agg(functions.max("number")).collect()[0][0]) + 1

    def slots(self) -> int | None:
        return None

    def refuse(self, name: str, in_task: bool, elastic: bool, has_rows: bool) -> None:
        if elastic:
            raise NotImplementedError(
                f"{name} does not work with Spark Connect, which cannot start a single task again\n"
                "hint: use horovod.spark.run, or run the script with a classic session, by spark-submit or "
                "SparkSession.builder.master(...)"
            )
        super().refuse(name, in_task, elastic, has_rows)

    def job(self, number: int, size: int, barrier: bool, frame: Any = None) -> SparkJob:
        return _ConnectJob(self._session, number, size, barrier, frame)


class _ConnectJob(SparkJob):
    """A job whose group is a tag of its operation."""

    def __init__(self, session: Any, number: int, size: int, barrier: bool, frame: Any) -> None:
        super().__init__(None, number, size, barrier, frame)
        self._session = session
        self._runs = not hasattr(session, "registerProgressHandler")  # a client before Spark 4 learns nothing

    def runs(self) -> bool:
        return self._runs

    def _of_thread(self) -> dict[str, Any]:
        return {"session": self._session}

    def _interrupt(self) -> None:
        self._session.interruptTag(self._group)

    def _collect(self, task: Task) -> list[Row]:
        def look(*_: Any, inflight_tasks: int, **__: Any) -> None:
            self._runs = self._runs or inflight_tasks > 0

        if self._frame is None:
            tasks = self._session.range(0, self._size, 1, self._size)
        else:
            tasks = self._frame.repartition(self._size)
        self._session.addTag(self._group)
        with contextlib.ExitStack() as stack:
            if not self._runs:
                self._session.registerProgressHandler(look)
                stack.callback(self._session.removeProgressHandler, look)
            mapped = in_arrow(task, self._frame is not None)
            return tuples(tasks.mapInArrow(mapped, SCHEMA, barrier=self._barrier).collect())


def active_session(name: str) -> Session:
    """The session of this process. Raises RuntimeError if there is none; `name`: of the function that asks."""
    try:
        from pyspark.sql.utils import is_remote
    except ImportError as error:
        raise ImportError(f"{name} needs pyspark: {error}\nhint: pip install pyspark") from None
    if not is_remote():
        return Session(active_context(name))
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql.connect.session import SparkSession

    try:
        return ConnectSession(SparkSession.active())
    except PySparkRuntimeError:
        raise no_session(name) from None
