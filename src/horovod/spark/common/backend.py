# SPDX-License-Identifier: Apache-2.0
"""Backends: how an estimator's training function becomes ranks. Spark's tasks by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from horovod.launcher.job.spec import OF_THIS_MACHINE
from horovod.settings import current_environment
from horovod.spark.connect import active_session

__all__ = ["Backend", "SparkBackend", "default_num_proc"]

# Variables that say where programs and their files are: an executor has its own.
_OF_INSTALLATIONS = OF_THIS_MACHINE | {
    "JAVA_HOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PATH",
    "PWD",
    "PYTHONHOME",
    "PYTHONPATH",
    "SHELL",
    "TMPDIR",
    "VIRTUAL_ENV",
}
_OF_SYSTEMS = ("CONDA_", "HADOOP_", "KUBERNETES_", "PYSPARK_", "SLURM_", "SPARK_", "YARN_")
_OF_MPI = ("use_mpi", "use_gloo", "extra_mpi_args")  # keywords of run that choose what is the only way


def default_num_proc() -> int:
    """Spark's default parallelism: as a rule the number of cores."""
    return active_session("SparkBackend").default_size()


def _is_for_ranks(name: str) -> bool:
    return name not in _OF_INSTALLATIONS and not name.startswith(_OF_SYSTEMS)


class Backend:
    """Runs a function in ranks. A subclass defines both methods."""

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Runs fn(*args, **kwargs) in each rank, with `env` over their environment; the results in rank order."""
        raise NotImplementedError(f"{type(self).__name__} does not define run")

    def num_processes(self) -> int:
        """The number of ranks."""
        raise NotImplementedError(f"{type(self).__name__} does not define num_processes")


class SparkBackend(Backend):
    """Runs the ranks in Spark tasks, by `horovod.spark.run`, to which other keywords are handed on.

    `env`: variables that override those of the tasks. By default the driver's, without paths of programs (PATH,
    JAVA_HOME, ...) and variables of Spark and the cluster.
    """

    def __init__(self, num_proc: int | None = None, env: dict[str, str] | None = None, **kwargs: Any) -> None:
        self._num_proc = num_proc or default_num_proc()
        if env is None:
            env = {name: value for name, value in current_environment().items() if _is_for_ranks(name)}
        self._env = dict(env)
        self._kwargs = kwargs

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Runs fn(*args, **kwargs) in each rank; the results in rank order."""
        from horovod.spark import run  # type: ignore[attr-defined,unused-ignore]

        environment = {**self._env, **(env or {})}
        results: list[Any] = run(
            fn, args=args, kwargs=dict(kwargs), num_proc=self._num_proc, env=environment, **self._kwargs
        )
        return results

    def num_processes(self) -> int:
        """The number of ranks."""
        return self._num_proc

    def run_with_rows(self, start: Callable[..., Any], frame: Any, env: Mapping[str, str] | None = None) -> list[Any]:
        """As `run`, on the rows of a DataFrame (horovod.spark.dataframe.run_with_rows)."""
        from horovod.spark.dataframe import run_with_rows

        kwargs = {name: value for name, value in self._kwargs.items() if name not in _OF_MPI}
        return run_with_rows(start, frame, num_proc=self._num_proc, env={**self._env, **(env or {})}, **kwargs)
