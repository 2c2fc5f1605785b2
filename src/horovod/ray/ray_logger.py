# SPDX-License-Identifier: Apache-2.0
"""Values from a rank to the callbacks of `run`: `ray_logger.log({"loss": loss})`."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["configure", "log"]

_log = logging.getLogger("horovod")
_queue: Any = None
warning_raised = False


def configure(queue: Any) -> None:
    """Sets the ray.util.queue.Queue that takes this process' values; None: there are no callbacks."""
    global _queue
    _queue = queue


def log(info_dict: dict[str, Any]) -> None:
    """Has each callback of this run called with `info_dict`, in the driver. Warns once if there are no callbacks."""
    global warning_raised
    if _queue is not None:
        _queue.put(info_dict)
    elif not warning_raised:
        warning_raised = True
        _log.warning(
            "horovod: ray_logger.log does nothing here: this run has no callbacks\n"
            "hint: RayExecutor.run(fn, callbacks=[print])"
        )
