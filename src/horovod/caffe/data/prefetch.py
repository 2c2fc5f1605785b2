# SPDX-License-Identifier: Apache-2.0
"""Batches that a thread makes ahead, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Prefetch"]

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Calls `make` in a thread, `depth` results ahead. The thread starts with the first next().

    An error of `make` is raised by the next() that would have returned its result.
    """

    def __init__(self, make: Callable[[], T], depth: int) -> None:
        self._make, self._depth = make, max(1, depth)
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[T]] = deque()

    def __next__(self) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "caffe-data")
        while len(self._ahead) <= self._depth:
            self._ahead.append(self._thread.submit(self._make))
        return self._ahead.popleft().result()

    def close(self) -> None:
        """Waits for the batch that is being made, and drops the others."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
        self._ahead.clear()
