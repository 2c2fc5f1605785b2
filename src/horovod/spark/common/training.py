# SPDX-License-Identifier: Apache-2.0
"""Parts that the ranks of every estimator share: the task that the driver sends them, their data, rank 0's uploads."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from horovod.core.wording import tell
from horovod.data import Plan
from horovod.data.parquet import Columns
from horovod.spark.common.store import RemoteStore

__all__ = ["Saver", "Task", "Transformation", "data_module_of", "device_kind", "same_device", "saver_of", "say"]
__all__ += ["train_on_rows"]


@dataclasses.dataclass
class Task:
    """The work of the ranks. Everything that a framework adds is in `model` and `options`."""

    model: bytes
    store: RemoteStore
    features: Sequence[str]
    labels: Sequence[str]
    sample_weight: str | None
    train_plan: Plan | None  # None until the rank knows its rows (train_on_rows)
    val_plan: Plan | None
    batch_size: int
    val_batch_size: int
    epochs: int
    train_steps: int
    val_steps: int
    verbose: int
    seed: int | None
    shuffle: bool
    buffer_rows: int | None
    transformation: Callable[[Columns], Columns] | None
    readers: tuple[int, int, str]
    in_memory: bool
    use_gpu: bool
    mp_start_method: str | None
    data_module: Any
    label_shapes: Sequence[Sequence[int]] | None
    checkpoint: bytes | None
    options: Mapping[str, Any]

    @property
    def columns(self) -> list[str]:
        """All columns that a rank reads, each once."""
        weight = [self.sample_weight] if self.sample_weight else []
        return list(dict.fromkeys([*self.features, *self.labels, *weight]))


class Transformation:
    """The user's function of a pandas DataFrame, as one of arrays by column."""

    def __init__(
        self, function: Callable[[Any], Any], edited: Sequence[Any] | None, removed: Any, kept: Sequence[str] = ()
    ) -> None:
        self._function = function
        self._edited = {field[0]: (field[1], field[2]) for field in edited or ()}
        self._removed = set(removed or ())
        self._kept = set(kept)

    def __call__(self, columns: Columns) -> Columns:
        import pandas

        frame = pandas.DataFrame(
            {name: values if values.ndim == 1 else list(values) for name, values in columns.items()}
        )
        changed = self._function(frame)
        found = {}
        for name in changed.columns:
            if name in self._removed or (self._kept and name not in self._kept):
                continue
            values = changed[name].to_numpy()
            if values.dtype == object and len(values) and isinstance(values[0], (np.ndarray, list, tuple)):
                values = np.stack([np.asarray(value) for value in values])
            if name in self._edited:
                dtype, shape = self._edited[name]
                values = values.astype(dtype).reshape(len(values), *(shape or ()))
            found[name] = values
        return found


def data_module_of(task: Task, default: type, rank: int, size: int, drop_last: bool, **more: Any) -> Any:
    """The data module of a rank: the user's class, or the default one."""
    train_workers, val_workers, pool = task.readers
    cls = task.data_module or default
    return cls(
        train_dir=task.store.train_data_path,
        val_dir=task.store.val_data_path,
        num_train_epochs=task.epochs,
        has_val=task.val_plan is not None,
        train_batch_size=task.batch_size,
        val_batch_size=task.val_batch_size,
        shuffle=task.shuffle,
        transform_fn=task.transformation,
        inmemory_cache_all=task.in_memory,
        cur_shard=rank,
        shard_count=size,
        schema_fields=None if task.transformation else task.columns,
        storage_options=task.train_plan.storage_options if task.train_plan is not None else None,
        steps_per_epoch_train=task.train_steps,
        steps_per_epoch_val=task.val_steps,
        verbose=task.verbose > 0,
        reader_pool_type=pool,
        train_reader_worker_count=train_workers,
        val_reader_worker_count=val_workers,
        random_seed=task.seed,
        train_plan=task.train_plan,
        val_plan=task.val_plan,
        buffer_rows=task.buffer_rows,
        drop_last=drop_last,
        **more,
    )


def train_on_rows(
    plans: tuple[Plan, Plan | None], train: Callable[[Task], dict[str, Any] | None], task: Task
) -> dict[str, Any] | None:
    """Trains in a rank whose rows are on its own disk (horovod/spark/dataframe.py)."""
    return train(dataclasses.replace(task, train_plan=plans[0], val_plan=plans[1]))


def same_device(kinds: Sequence[str]) -> None:
    """Raises RuntimeError if some ranks train on a GPU and others do not."""
    if len(set(kinds)) > 1:
        table = ", ".join(f"rank {rank}: {kind}" for rank, kind in enumerate(kinds))
        raise RuntimeError(
            f"All ranks don't have same device type! {table}\nhint: use_gpu=False trains on the CPU everywhere"
        )


def device_kind(task: Task, has_gpu: bool) -> str:
    """The kind of device that this rank trains on; also applies what the task says about the process."""
    if task.mp_start_method:
        multiprocessing.set_start_method(task.mp_start_method, force=True)
    return "gpu" if task.use_gpu and has_gpu else "cpu"


def say(task: Task, text: str) -> None:
    """Prints progress, if the user wants it."""
    if task.verbose:
        tell(f"horovod: {text}", sys.stdout)


class Saver:
    """Rank 0's checkpoints: written to a local folder, then uploaded. A failed upload does not end the training."""

    def __init__(self, store: RemoteStore, folder: str) -> None:
        self.folder = folder
        self.logs = os.path.join(folder, store.logs_subdir)
        self.checkpoint = os.path.join(folder, store.checkpoint_filename)
        self._store = store
        self.failure = ""

    def log(self, entry: Mapping[str, Any]) -> None:
        """Adds an epoch to logs/history.jsonl."""
        os.makedirs(self.logs, exist_ok=True)
        with open(os.path.join(self.logs, "history.jsonl"), "a") as file:
            file.write(json.dumps(entry) + "\n")

    def upload(self) -> None:
        """Uploads what has changed, if runs are saved. Keeps the error for the end if it fails."""
        if not self._store.saving_runs:
            return
        try:
            self._store.sync(self.folder)
            self.failure = ""
        except OSError as error:
            self.failure = str(error)
            tell(f"horovod: {error}; the training goes on", sys.stdout)


@contextlib.contextmanager
def saver_of(task: Task, rank: int) -> Iterator[Saver | None]:
    """The Saver on rank 0; else None."""
    if rank != 0:
        yield None
        return
    with task.store.get_local_output_dir() as folder:
        yield Saver(task.store, folder)
