# SPDX-License-Identifier: Apache-2.0
"""A task of a job that task 0 supervises, so that executors need not reach the driver. Each task is a rank, too.

Task 0 starts the supervising process, as the driver would do, and tells the others where it is by the barrier's
allGather. At the end it returns output and results as rows (outcome.py). If task 0 is killed, the kernel signals the
supervising process, which ends the job.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from horovod.launcher.function.supervised import Supervised
from horovod.spark.assembly import Assembly, Ended, addresses_on
from horovod.spark.task.outcome import Output, Row, rows_of_end, rows_of_error
from horovod.spark.task.relay import relay

__all__ = ["supervise"]

_UNREACHABLE = (
    "task 0: {}\nhint: a firewall must let executors connect to each other at any port; "
    "nics= names a network that they share"
)
_OUTPUT_BYTES = 1 << 20  # for each rank


def supervise(
    index: int, name: str, size: int, task: bytes, local_rank_gpu: bool, plan: dict[str, Any]
) -> Iterator[Row]:
    """Returns the rows, which only task 0 has. Raises RuntimeError if this task cannot reach task 0.

    `plan`: of launcher/function/supervised.py.
    """
    from pyspark import BarrierTaskContext

    leader = _Leader(Assembly(name, size, lambda _: None, local_rank_gpu), task, size, plan) if index == 0 else None
    try:
        port = leader.port() if leader is not None else None
        where = json.dumps([addresses_on(plan["interface"]), port])
        addresses, port = json.loads(BarrierTaskContext.get().allGather(where)[0])
        if port is not None:
            relay(index, addresses, port, plan["secret"], False, _UNREACHABLE)
    except BaseException:
        if leader is not None:
            leader.end()
        raise
    return leader.rows() if leader is not None else iter(())


class _Leader:
    """The supervising process of task 0, which a thread of this one looks after."""

    def __init__(self, assembly: Assembly, task: bytes, size: int, plan: dict[str, Any]) -> None:
        self._assembly = assembly
        self._output = Output(_OUTPUT_BYTES * size, sys.stderr)
        self._ports: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._supervised: Supervised | None = None
        self._ended: Ended[bytes] | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(task, plan), daemon=True)
        self._thread.start()

    def port(self) -> int | None:
        """The port for the tasks; None if the process could not be started."""
        return self._ports.get()

    def end(self) -> None:
        if self._supervised is not None:
            self._supervised.end()
        self._thread.join()

    def rows(self) -> Iterator[Row]:
        """Blocks until the job has ended."""
        self._thread.join()
        yield from self._output.rows()
        if self._error is not None:
            yield from rows_of_error(self._error)
        elif self._ended is not None:
            yield from rows_of_end(*self._ended, self._assembly.hosts)

    def _run(self, task: bytes, plan: dict[str, Any]) -> None:
        out, err = self._output.stream("stdout"), self._output.stream("stderr")
        try:
            self._ended = self._assembly.run(task, out, err, self._begin, _bytes_of, time.monotonic(), plan)
        except Exception as error:  # it is the driver's
            self._error = error
        finally:
            self._ports.put(None)

    def _begin(self, supervised: Supervised, port: int) -> None:
        self._supervised = supervised
        self._ports.put(port)


def _bytes_of(_: int, path: str) -> bytes:
    return Path(path).read_bytes()
