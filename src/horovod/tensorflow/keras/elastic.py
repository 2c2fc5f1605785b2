# SPDX-License-Identifier: Apache-2.0
"""Elastic training with model.fit() of tf.keras, which is Keras 3 or tf-keras: as horovod.keras.elastic has it."""

from horovod.elastic.worker.decorator import run
from horovod.tensorflow.keras.elastic_callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from horovod.tensorflow.keras.elastic_state import KerasState

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
