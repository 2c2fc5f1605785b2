# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit() of Keras 3: equal start values, averaged metrics, learning rates for large batches."""

from typing import Any

import keras

from horovod.keras.callback_classes import callback_classes

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckReplicasCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_classes = callback_classes(keras.callbacks)

BroadcastGlobalVariablesCallback = _classes.BroadcastGlobalVariablesCallback
MetricAverageCallback = _classes.MetricAverageCallback
LearningRateScheduleCallback = _classes.LearningRateScheduleCallback
LearningRateWarmupCallback = _classes.LearningRateWarmupCallback
CheckReplicasCallback = _classes.CheckReplicasCallback


_BestModelCheckpoint: Any = _classes.BestModelCheckpoint


class BestModelCheckpoint(_BestModelCheckpoint):
    """ModelCheckpoint with save_best_only, written by rank 0 only.

    `filepath` may be set later, as the Spark estimator does. The parameters' order is that of Horovod, which had no
    save_weights_only here.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        save_weights_only: bool = False,
        filepath: Any = None,
    ) -> None:
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq, filepath)
