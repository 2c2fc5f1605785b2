# SPDX-License-Identifier: Apache-2.0
"""Backends: how an estimator's training function becomes ranks. Spark's tasks by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from horovod.settings import current_environment
from horovod.spark.connect import active_session

__all__ = ["Backend", "SparkBackend", "default_num_proc"]


def default_num_proc() -> int:
    """Spark's default parallelism: as a rule the number of cores."""
    return active_session("SparkBackend").default_size()


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

    `env` is the environment of the ranks: by default that of the driver without CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, num_proc: int | None = None, env: dict[str, str] | None = None, **kwargs: Any) -> None:
        self._num_proc = num_proc or default_num_proc()
        if env is None:
            env = current_environment()
            env.pop("CUDA_VISIBLE_DEVICES", None)
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
