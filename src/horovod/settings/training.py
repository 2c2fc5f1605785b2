# SPDX-License-Identifier: Apache-2.0
"""The settings of training: a part of the table in table.py."""

from __future__ import annotations

import dataclasses

from horovod.settings import kinds
from horovod.settings.kinds import setting

__all__ = ["TrainingSettings"]


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """The same on all ranks."""

    replica_check: str = setting(
        "HOROVOD_REPLICA_CHECK",
        kinds.choice("warn", "error"),
        "warn",
        "What an optimizer does if the ranks' parameters, or options such as the learning rate, differ.",
    )
    replica_check_steps: int = setting(
        "HOROVOD_REPLICA_CHECK_STEPS",
        kinds.integer(0),
        1,
        "Optimizers compare the ranks' parameters before their first step, and before the first after a join. "
        "Above 1: again before every so many steps. Options, such as the learning rate, are compared after each of the "
        "first 16 steps, and then after every 16th. 0: neither. "
        "In steps that are compiled (tf.function, Keras' fit, jax.jit) only options are compared.",
    )
    replica_check_whole: bool = setting(
        "HOROVOD_REPLICA_CHECK_WHOLE",
        kinds.switch(),
        False,
        "Compare all elements of the parameters and the optimizer's state at these steps, not a sample.",
    )
    same_rows_check: bool = setting(
        "HOROVOD_SAME_ROWS_CHECK",
        kinds.switch(),
        True,
        "Warn if all ranks have equal gradients in the first steps: they seem to train on the same rows.",
    )
    finite_check: str = setting(
        "HOROVOD_FINITE_CHECK",
        kinds.choice("off", "warn", "error"),
        "off",
        "What an optimizer does if a gradient of some rank is not finite. It names the first rank, tensor and step. "
        "All elements of the gradients are looked at.",
    )
    status_interval_s: float = setting(
        "HOROVOD_STATUS_INTERVAL_SECONDS",
        kinds.number(0),
        1.0,
        "Seconds between two statuses that a rank sends to the rendezvous, for horovodrun top, stacks and --summary; "
        "more in jobs of more than 500 ranks. 0: never, and horovodrun jobs does not list the job.",
    )
