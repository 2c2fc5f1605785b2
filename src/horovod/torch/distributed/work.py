# SPDX-License-Identifier: Apache-2.0
"""The operations of one call of a process group until torch has taken the results, and the future of them.

Thread safety: any thread may wait. A future is completed by a thread of its own (threads.py), which waits for the
operations like any other: then the script may compute, and callbacks of the future may wait in turn.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from horovod.core.operations import Operation, TimeLimit
from horovod.torch.distributed import threads
from horovod.torch.distributed.errors import as_torch

__all__ = ["DONE", "OperationsWork", "limited"]


def limited(limit: TimeLimit, timeout: timedelta | None) -> TimeLimit:
    """The limit of a wait: `timeout`, if it is a time; torch says -1 ms or 0 if it means the group's."""
    if timeout is None or timeout <= timedelta(0):
        return limit
    return TimeLimit(timeout.total_seconds(), limit.say)


class OperationsWork(Work):
    """The operations of one call. `outputs`: the result; `deliver` brings it there when all are done."""

    def __init__(
        self,
        operations: Sequence[Operation],
        outputs: list[Any],
        limit: TimeLimit,
        deliver: Callable[[list[Any]], None] | None = None,
    ) -> None:
        super().__init__()
        self._operations = operations
        self._outputs = outputs
        self._limit = limit
        self._deliver = deliver
        self._lock = threading.Lock()
        self._is_done = False
        self._error: BaseException | None = None
        self._future: Future[Any] | None = None
        self.results: list[Any] = []

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until the results are there. Raises what went wrong; after `timeout`, on all ranks of the job."""
        if not self._is_done:
            self._finish(timeout)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def _finish(self, timeout: timedelta | None) -> None:
        with self._lock:
            if self._is_done:
                return
            try:
                limit = limited(self._limit, timeout)
                # All are waited for, also if one fails: what is left of them would be written to meanwhile.
                failed: Exception | None = None
                for operation in self._operations:
                    try:
                        self.results.append(operation.wait(None, limit))
                    except Exception as error:
                        failed = failed or error
                if failed is not None:
                    raise failed
                if self._deliver is not None:
                    self._deliver(self.results)
            except Exception as error:
                # Without its traceback, which would keep this frame and with it the generation.
                self._error = as_torch(error.with_traceback(None))
            self._operations, self._deliver = (), None
            self._is_done = True

    def is_completed(self) -> bool:
        """True if the results are there: wait() would return or raise at once."""
        if not self._is_done:
            if not self._lock.acquire(blocking=False):
                return False  # another thread waits, or is about to deliver
            try:
                is_over = all(operation.done() for operation in self._operations)
            finally:
                self._lock.release()
            if is_over:
                self._finish(None)
        return self._is_done

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error of an operation that is done."""
        self.is_completed()
        return self._error

    def result(self) -> list[Any]:
        self.wait()
        return self._outputs

    def get_future(self) -> Future[Any]:
        """The future of the outputs. An error is raised from it as a RuntimeError with our text."""
        if self._future is None:
            devices = {one.device for one in self._outputs if isinstance(one, Tensor) and one.is_cuda}
            source: Future[None] = Future(devices=list(devices) or None)
            # An error that a callback raises is one to C++, too, where DistributedDataParallel waits. set_exception
            # would give it the exception as a result.
            self._future = source.then(self._outcome)
            if self._is_done:
                source.set_result(None)
            else:
                threads.run(functools.partial(self._complete, source))
        return self._future

    def _outcome(self, _: Future[None]) -> list[Any]:
        self.wait()
        return self._outputs

    def _complete(self, source: Future[None]) -> None:
        if not self._is_done:
            self._finish(None)
        source.set_result(None)


class _DoneWork(Work):
    """The work of a call whose results were there when it returned."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Any]:
        return []

    def get_future(self) -> Future[Any]:
        future: Future[Any] = torch.futures.Future()
        future.set_result([])
        return future


DONE = _DoneWork()
