# SPDX-License-Identifier: Apache-2.0
"""Old import names around the states of an elastic job's workers, which membership.py knows here."""

from __future__ import annotations

from typing import Any

from horovod.runner.elastic.driver import driven_by_horovodrun

__all__ = ["FAILURE", "READY", "SUCCESS", "WorkerStateRegistry"]

READY = "READY"
SUCCESS = "SUCCESS"
FAILURE = "FAILURE"


class WorkerStateRegistry:
    """Raises NotImplementedError."""

    def __init__(self, driver: Any, host_manager: Any, reset_limit: int | None = None, verbose: bool = False) -> None:
        raise driven_by_horovodrun("WorkerStateRegistry")
