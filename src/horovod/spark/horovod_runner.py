# SPDX-License-Identifier: Apache-2.0
"""HorovodRunner, as notebooks of Databricks know it from the package sparkdl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod
from horovod.spark.connect import active_session
from horovod.spark.runner import called, run

__all__ = ["HorovodRunner"]

_LEVELS = ("all", "log_callback_only")


class HorovodRunner:
    """Runs a function in ranks; `run` returns the result of rank 0.

    `np`: that many Spark tasks; if it is negative, -np processes of this machine; 0: as many tasks as Spark's default
    parallelism. `driver_log_verbosity`: "all" shows the ranks' output; "log_callback_only" does not, for Spark tasks.
    """

    def __init__(self, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if driver_log_verbosity not in _LEVELS:
            raise ValueError(f"driver_log_verbosity={driver_log_verbosity!r}: expected {' or '.join(_LEVELS)}")
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Runs main(**kwargs). Blocks until the job has ended; raises as horovod.spark.run does."""
        if self.num_processor < 0:
            return horovod.run(main, kwargs=kwargs, num_proc=-self.num_processor)[0]
        size = self.num_processor or active_session("HorovodRunner").default_size()
        output: dict[str, Any] = {}
        if self.driver_log_verbosity != "all":
            output = {"stdout": _Nothing(), "stderr": _Nothing(), "verbose": 0}
        with called("HorovodRunner.run"):
            return run(main, kwargs=kwargs, num_proc=size, **output)[0]


class _Nothing:
    def write(self, text: str) -> None:
        pass
