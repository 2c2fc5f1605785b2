# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit() of tf.keras, which is Keras 3, or tf-keras if TF_USE_LEGACY_KERAS=1."""

import tensorflow as tf

from horovod.keras.callback_classes import callback_classes

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckReplicasCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_classes = callback_classes(tf.keras.callbacks)

BroadcastGlobalVariablesCallback = _classes.BroadcastGlobalVariablesCallback
MetricAverageCallback = _classes.MetricAverageCallback
LearningRateScheduleCallback = _classes.LearningRateScheduleCallback
LearningRateWarmupCallback = _classes.LearningRateWarmupCallback
CheckReplicasCallback = _classes.CheckReplicasCallback
BestModelCheckpoint = _classes.BestModelCheckpoint
