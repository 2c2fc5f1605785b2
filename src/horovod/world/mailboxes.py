# SPDX-License-Identifier: Apache-2.0
"""Words between the launcher of an elastic job and its workers, in both directions: each arrives once, in order.

A worker's connection may break at any time, and then it asks again: for the words after the last one that it has, or
with the number of a word that may have arrived already. Pure, as rendezvous_store.py, whose part this is.
"""

from __future__ import annotations

import collections
from typing import Any

__all__ = ["Mailboxes"]


class Mailboxes:
    """Not thread-safe. Words are anything JSON can say; their numbers begin with 1, for each worker."""

    def __init__(self) -> None:
        self._heard: dict[int, int] = {}  # by worker: the number of its last word
        self._told: dict[int, int] = {}  # by worker: the number of the last word for it
        self._letters: dict[int, collections.deque[tuple[int, Any]]] = {}  # those that it may not have got yet

    def is_new(self, worker: int, number: int) -> bool:
        """True if this word of a worker has not come before; remembers it."""
        if number <= self._heard.get(worker, 0):
            return False
        self._heard[worker] = number
        return True

    def tell(self, worker: int, word: Any) -> None:
        """Keeps a word until the worker has got it."""
        number = self._told[worker] = self._told.get(worker, 0) + 1
        self._letters.setdefault(worker, collections.deque()).append((number, word))

    def after(self, worker: int, number: int) -> list[Any]:
        """The words for a worker behind the one of that number, which it has got with all before."""
        letters = self._letters.get(worker, collections.deque())
        while letters and letters[0][0] <= number:
            letters.popleft()
        return [word for _, word in letters]

    def forget(self, worker: int) -> None:
        """The worker has ended."""
        for known in (self._heard, self._told, self._letters):
            known.pop(worker, None)
