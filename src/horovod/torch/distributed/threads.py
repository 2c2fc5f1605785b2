# SPDX-License-Identifier: Apache-2.0
"""The threads that complete futures.

A future's callbacks run on the thread that completes it, and may wait for further operations, as PowerSGD's do. So no
thread may have a second future to complete: a new thread is started if none is idle. The threads do not keep the
process alive. Their names do not begin with `horovod-`, as callbacks may submit operations: the engine must not take
a process whose script waits for one that can do nothing more (core/operations.py).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

__all__ = ["run"]

Task = Callable[[], None]


class _Threads:
    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0  # that no task in the queue is meant for

    def run(self, task: Task) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._tasks.put(task)
                return
        threading.Thread(target=self._work, args=(task,), name="hvd-torch-future", daemon=True).start()

    def _work(self, task: Task | None) -> None:
        while task is not None:
            task()
            task = None  # what it holds must not live until the next one comes
            with self._lock:
                self._idle += 1
            task = self._tasks.get()


_threads = _Threads()


def run(task: Task) -> None:
    """Runs `task` on a thread that has nothing else to do. It must not raise."""
    global _threads
    if _threads.process_id != os.getpid():  # a forked child has none of the threads
        _threads = _Threads()
    _threads.run(task)
