# SPDX-License-Identifier: Apache-2.0
"""horovod.spark.run_on_dataframe: a Python function as ranks that each read a share of a DataFrame's rows.

    def train(rows, learning_rate):
        for batch in to_torch(rows):  # an epoch: {column: tensor}
            ...

    results = horovod.spark.run_on_dataframe(train, df, args=(0.1,), num_proc=4)

Spark makes a partition for each rank, and the rank's task writes it to the disk of its machine (task/rows.py). No store
is needed. Estimators without a store use the same way (`run_with_rows`).
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.core import tracebacks
from horovod.core.wording import counted
from horovod.data import ParquetReader, Plan
from horovod.settings import Settings
from horovod.spark.common.dataset import selected
from horovod.spark.runner import _checked, _Job, _pickled, dumped_call, name_of_call
from horovod.spark.task.rows import NAMES, VALIDATION, Part, opened

__all__ = ["run_on_dataframe", "run_with_rows"]

_NAME = "horovod.spark.run_on_dataframe"
_START_S = 86400.0  # Spark computes the DataFrame in that time

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


# The arguments that run has too: jscpd:ignore-start
def run_on_dataframe(
    fn: Callable[..., Any],
    df: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = {},  # noqa: B006 - as that of run
    num_proc: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    start_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Sequence[str] | set[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    # jscpd:ignore-end
    """Runs fn(rows, *args, **kwargs) in `num_proc` Spark tasks; returns the results in rank order.

    `rows` is a horovod.data.ParquetReader over the rank's share of the DataFrame: each iteration is an epoch, and
    yields {column: array}. All ranks have the same number of rows. Select the columns before; vectors become lists of
    float32. `batch_size`, `shuffle`, `seed` and `drop_last` are the reader's. `start_timeout`: how long Spark may take
    to compute and write the rows, in seconds; by default a day. The others, and what is raised: see `run`.

    Raises ValueError if there are fewer rows than ranks, or a column has a type that no array can hold.
    """
    tracebacks.install()
    if not callable(fn) or not hasattr(df, "schema"):
        raise TypeError(
            f"{_NAME} got a {type(fn).__name__} and a {type(df).__name__}: expected a function and a DataFrame of Spark"
        )
    if batch_size < 1:
        raise ValueError(f"{_NAME}: batch_size is {batch_size}: expected at least 1")
    call = dumped_call(fn, args, kwargs, _NAME)
    reader = {"batch_size": batch_size, "shuffle": shuffle, "seed": seed, "drop_last": drop_last}

    def start(found: Sequence[Part], _: Any) -> Call:
        rows, size = found[0].total, len(found[0].rows)
        if rows < size:
            raise ValueError(
                f"{_NAME}: the DataFrame has {counted(rows, 'row')} for {counted(size, 'rank')}\n"
                f"hint: num_proc={max(rows, 1)}, or more data"
            )
        return _train, (call, reader), {}

    return run_with_rows(
        start,
        selected(df, df.columns),
        num_proc=num_proc,
        start_timeout=start_timeout,
        env=env,
        stdout=stdout,
        stderr=stderr,
        verbose=verbose,
        nics=nics,
        prefix_output_with_timestamp=prefix_output_with_timestamp,
        executable=executable,
    )


@dataclasses.dataclass
class _Others:
    """Keywords of run."""

    stdout: Any = None
    stderr: Any = None
    verbose: int = 1
    nics: Sequence[str] | set[str] | None = None
    prefix_output_with_timestamp: bool = False
    executable: str | None = None


def run_with_rows(
    start: Callable[[Sequence[Part], Mapping[str, Any]], Call],
    frame: Any,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    **keywords: Any,
) -> list[Any]:
    """Runs a function as ranks on the rows of a DataFrame that `selected` has made. `keywords`: see `run`.

    `start`: called once the rows are written, with the training and the validation rows and the shapes of the columns;
    gives the function, its arguments and keywords. The function's first argument are the plans of its rows (`opened`).
    """
    others = _Others(**keywords)
    name = name_of_call(_NAME)
    interface = _checked(num_proc, others.nics, name)
    job = _Job(name, num_proc, env, others.verbose, others.stdout, others.stderr)
    columns = [column for column in frame.columns if column != VALIDATION]

    def task(tasks: list[dict[str, Any]]) -> bytes:
        found = [
            Part(tuple(one["rows"][kind] for one in tasks) or (0,) * job.size, sum(one["bytes"][kind] for one in tasks))
            for kind in range(len(NAMES))
        ]
        shapes = next((one["shapes"] for one in tasks if one["shapes"]), [None] * len(columns))
        function, args, kwargs = start(found, dict(zip(columns, shapes, strict=True)))
        return _pickled(_on_rows, (found, function, args, kwargs), {}, name)

    return job.run(
        task,
        _START_S if start_timeout is None else start_timeout,
        elastic=None,
        frame=frame,
        python=others.executable or "",
        interface=interface,
        timestamps=others.prefix_output_with_timestamp,
    )


def _on_rows(
    parts: Sequence[Part], function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    return function(opened(parts), *args, **kwargs)


def _train(found: tuple[Plan, Any], call: bytes, options: Mapping[str, Any]) -> Any:
    fn, args, kwargs = pickle.loads(call)
    settings = Settings.from_environment()
    with ParquetReader(found[0], rank=settings.rank or 0, size=settings.size or 1, **options) as rows:
        return fn(rows, *args, **kwargs)
