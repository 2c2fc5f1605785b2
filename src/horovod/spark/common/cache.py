# SPDX-License-Identifier: Apache-2.0
"""Which DataFrames are in the store already: an index for each, and what its data holds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["TrainingDataCache"]

Key = tuple[Any, ...]


class TrainingDataCache:
    """The indices of prepared DataFrames, for all threads of the driver. An index in use is not overwritten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def create_key(self, df: Any, store: Any, validation: Any, *more: Any) -> Key:
        """Two DataFrames with one key have one plan and read the same files."""
        paths = (store.get_train_data_path(), store.get_val_data_path())
        return (df.semanticHash(), tuple(sorted(df.inputFiles())), paths, validation, *more)

    @contextlib.contextmanager
    def use_key(self, key: Key) -> Iterator[None]:
        """One thread at a time prepares the data of a key; while it is used, its index stays."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.RLock())
            self._users[key] = self._users.get(key, 0) + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._users[key] -= 1

    def next_dataset_index(self, key: Key) -> int:
        """The index of the key, a new one if it has none."""
        with self._lock:
            if key not in self._indices:
                taken = set(self._indices.values())
                self._indices[key] = next(index for index in range(len(taken) + 1) if index not in taken)
            return self._indices[key]

    def get_dataset(self, key: Key) -> int | None:
        """The index of prepared data; None if there is none."""
        with self._lock:
            index = self._indices.get(key)
            return index if index in self._properties else None

    def get_dataset_properties(self, dataset_idx: int) -> Any:
        """(training rows, validation rows, metadata, mean bytes of a row) of an index."""
        with self._lock:
            return self._properties[dataset_idx]

    def set_dataset_properties(self, dataset_idx: int, props: Any) -> None:
        """Notes that the data of an index is there."""
        with self._lock:
            self._properties[dataset_idx] = props

    def is_cached(self, key: Key, store: Any) -> bool:
        """True if the data of the key is prepared, and still in the store."""
        index = self.get_dataset(key)
        if index is None:
            return False
        path = store.get_train_data_path(index)
        return bool(store.exists(store.get_data_metadata_path(path)))

    def clear(self) -> None:
        """Forgets all data that is not in use; it is prepared anew."""
        with self._lock:
            users = getattr(self, "_users", {})
            used = {key for key, count in users.items() if count}
            self._users = {key: users[key] for key in used}
            self._locks = {key: lock for key, lock in getattr(self, "_locks", {}).items() if key in used}
            self._indices: dict[Key, int] = {k: i for k, i in getattr(self, "_indices", {}).items() if k in used}
            held = set(self._indices.values())
            self._properties: dict[int, Any] = {
                index: props for index, props in getattr(self, "_properties", {}).items() if index in held
            }
