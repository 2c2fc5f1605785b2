# SPDX-License-Identifier: Apache-2.0
"""Elastic training with loops of TensorFlow: a job goes on if workers are lost, and takes in new ones.

In a script:

    @hvd.elastic.run
    def train(state):
        while state.batch < batches:
            ...
            state.batch += 1
            state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0))
"""

from horovod.elastic.worker.decorator import run
from horovod.tensorflow.elastic_state import TensorFlowKerasState, TensorFlowState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]
