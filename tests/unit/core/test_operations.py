# SPDX-License-Identifier: Apache-2.0
"""Operations that were dropped without being waited for are let go once, whichever thread finds them done."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from horovod.core import native, operations


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
