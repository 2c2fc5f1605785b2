# SPDX-License-Identifier: Apache-2.0
"""Elastic training with model.fit() of Keras 3: a job goes on if workers are lost, and takes in new ones.

In a script:

    @hvd.elastic.run
    def train(state):
        model.fit(..., epochs=epochs - state.epoch, callbacks=[
            hvd.elastic.CommitStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ])

    train(hvd.elastic.KerasState(model, epoch=0, batch=0))
"""

from horovod.elastic.worker.decorator import run
from horovod.keras.elastic_callbacks import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
from horovod.keras.elastic_state import KerasState

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
