# SPDX-License-Identifier: Apache-2.0
"""The interface between RayExecutor and a job: of fixed size (runner.py), or elastic (elastic_v2.py)."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

__all__ = ["Adapter", "BaseParams"]


class Adapter(ABC):
    """A job on Ray. With Ray Client it is an actor of the cluster, so that driver and ranks are on one network."""

    @abstractmethod
    def start(
        self,
        executable_cls: type | None = None,
        executable_args: list[Any] | None = None,
        executable_kwargs: dict[str, Any] | None = None,
        extra_env_vars: dict[str, str] | None = None,
    ) -> None:
        """Starts the ranks, and an object of `executable_cls` in each."""

    @abstractmethod
    def execute(self, fn: Callable[[Any], Any], callbacks: list[Callable[..., Any]] | None = None) -> list[Any]:
        """Calls `fn` with each rank's executable; the results by rank."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        callbacks: list[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Calls fn(*args, **kwargs) in each rank; the results by rank."""

    @abstractmethod
    def run_remote(
        self,
        fn: Callable[..., Any],
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        callbacks: list[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Does run without waiting; the results as ObjectRefs."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn` with the executable of rank 0."""

    @abstractmethod
    def shutdown(self) -> None:
        """Ends the ranks. Idempotent."""


@dataclasses.dataclass
class BaseParams:
    """The resources of a rank. Raises ValueError."""

    cpus_per_worker: int = 1
    use_gpu: bool = False
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        if self.gpus_per_worker is not None and not self.use_gpu:
            raise ValueError(f"gpus_per_worker={self.gpus_per_worker} needs use_gpu=True")
        if self.use_gpu and self.gpus_per_worker is not None and self.gpus_per_worker < 1:
            raise ValueError(f"gpus_per_worker={self.gpus_per_worker}: expected 1 or more, since use_gpu is True")
