# SPDX-License-Identifier: Apache-2.0
"""Horovod's data loader classes: a loader, and a mixin that loads on a background thread."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from horovod.core.wording import tell

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]


class BaseDataLoader:
    """A data loader: a subclass defines `__len__` and `_iterate`."""

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        raise NotImplementedError(f"{type(self).__name__} does not define __len__")

    def _iterate(self) -> Iterator[Any]:
        """Yields the batches of an epoch."""
        raise NotImplementedError(f"{type(self).__name__} does not define _iterate")

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of an epoch, each after `_process_batch`."""
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Changes a batch before it is yielded; here it stays as it is."""
        return batch


class _Failure:
    """An exception of the background thread, on its way to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class AsyncDataLoaderMixin:
    """Loads batches on a background thread; the first base class, before a BaseDataLoader.

    The thread loads epoch after epoch, at most `async_loader_queue_size` batches ahead. With a size of 0 the loader
    works without a thread. An exception of the loader is raised where the batch was awaited. An iteration that was left
    before its end is over: the next one begins with the next epoch. `close_async_loader` ends the thread; a later
    iteration starts it anew.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_amid = False  # from the start of an iteration until its end mark is read
        self._batches: queue.Queue[Any] = queue.Queue(max(async_loader_queue_size, 1))
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends the background thread, and waits for it. Batches that it has loaded are dropped."""
        self._say("closes")
        self._closing.set()
        if self._thread is not None:
            while self._thread.is_alive():
                self._drain()
                self._thread.join(0.05)
            self._thread = None
        self._drain()
        self._is_amid = False

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of an epoch; the thread starts with the first epoch."""
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        if self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(target=self._load, name="horovod-data-loader", daemon=True)
            self._thread.start()
            self._say("starts")
        while self._is_amid:
            self._next()
        self._is_amid = True
        while (batch := self._next()) is not None:
            yield self._process_batch(batch)  # type: ignore[attr-defined]

    def _next(self) -> Any:
        """The next batch; None at the end of an epoch. Raises the exception of the thread."""
        batch = self._batches.get()
        if batch is None:
            self._is_amid = False
        if isinstance(batch, _Failure):
            self._thread, self._is_amid = None, False
            raise batch.error
        return batch

    def _load(self) -> None:
        try:
            while not self._closing.is_set():
                for batch in self._iterate():  # type: ignore[attr-defined]
                    if not self._put(batch):
                        return
                if not self._put(None):
                    return
        except BaseException as error:
            self._put(_Failure(error))

    def _put(self, batch: Any) -> bool:
        """Hands a batch over; false if the loader closes."""
        while not self._closing.is_set():
            try:
                self._batches.put(batch, timeout=0.05)
            except queue.Full:
                continue
            return True
        return False

    def _drain(self) -> None:
        while not self._batches.empty():
            self._batches.get()

    def _say(self, what: str) -> None:
        if self.debug_data_loader:
            tell(f"{type(self).__name__} {what} its thread: {self._batches.qsize()} batches are loaded", sys.stdout)
