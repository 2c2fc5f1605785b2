# SPDX-License-Identifier: Apache-2.0
"""A warning at the end of a job whose ranks seem to have trained without each other."""

from __future__ import annotations

import sys
from typing import Any

from horovod.core.wording import tell

__all__ = ["warn_of_training_apart"]

_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet")  # whose scripts train


def warn_of_training_apart(size: int, counts: dict[str, Any], smallest_replica: int, reduces_gradients: bool) -> None:
    """On rank 0 of `size`. `counts`: its statistics. `smallest_replica`: elements, 0 if nothing was broadcast."""
    reduced = reduces_gradients or counts["largest_reduction"] >= smallest_replica
    if smallest_replica and not reduced:
        tell(
            "horovod: warning: the parameters were broadcast, but nothing as large as a parameter was averaged or "
            "summed: if this script trains, each rank has trained alone\nhint: train with hvd.DistributedOptimizer, "
            "or as the framework's page says (horovodrun --explain pytorch, for example)"
        )
    elif counts["batches"] == 0 and any(f"horovod.{name}" in sys.modules for name in _FRAMEWORKS):
        tell(
            f"horovod: note: the {size} ranks have exchanged nothing. If the script trains a model, each "
            "rank now has a different one\nhint: `horovodrun --explain quickstart` shows how to train one model. If "
            "the ranks were to work alone, ignore this"
        )
