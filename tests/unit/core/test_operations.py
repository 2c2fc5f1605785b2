# SPDX-License-Identifier: Apache-2.0
"""Operations that were dropped without being waited for are let go once, whichever thread finds them done."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import horovod.core as hvd
from horovod.core import arrays, native, operations


class Library:
    """Ends its operations; each look at one lets the other thread go first."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.both_look = threading.Barrier(2)

    def hvd_poll(self, pointer: int, handle: Any, status: None) -> int:
        self.both_look.wait(60)
        return native.OK

    def hvd_release(self, pointer: int, handle: Any) -> None:
        self.released.append(handle)


class Context:
    pointer = 0
    is_freed = False

    def __init__(self, library: Library) -> None:
        self.library = library


@pytest.mark.parametrize("kept, forget", [("_dropped", "_forget_done"), ("_launched", "_forget_launched")])
def test_two_threads_let_go_of_each_operation_once(monkeypatch: pytest.MonkeyPatch, kept: str, forget: str) -> None:
    library = Library()
    monkeypatch.setattr(operations, kept, [(Context(library), number, ()) for number in range(5)])
    errors: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    threads = [threading.Thread(target=getattr(operations, forget)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and sorted(library.released) == list(range(5)) and getattr(operations, kept) == []


class Watched:
    """The native library; no function may be given a context that was freed."""

    def __init__(self, library: Any) -> None:
        self.library, self.freed = library, list[int]()

    def __getattr__(self, name: str) -> Any:
        def call(pointer: int, *arguments: Any) -> Any:
            assert pointer not in self.freed, f"{name} after hvd_free"
            if name == "hvd_free":
                self.freed.append(pointer)
            return getattr(self.library, name)(pointer, *arguments)

        return call


def test_a_generation_may_be_garbage_together_with_its_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that a destroyed process group of PyTorch holds are. The order of their finalizers is not fixed."""
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    hvd.init()
    started = arrays.operations.collectives.allreduce(np.ones(2), "x", (hvd.Sum, None, 1.0, 1.0, None), False)
    watched = started.context.library = Watched(started.context.library)  # type: ignore[assignment]
    cycle: list[Any] = [started, started.context]
    cycle.append(cycle)
    hvd.shutdown()
    del started, cycle
    gc.collect()
    assert watched.freed
    hvd.init()
    assert hvd.allreduce(np.ones(2)).tolist() == [1.0, 1.0]
    hvd.shutdown()
    assert raised == [] and operations._dropped == []
