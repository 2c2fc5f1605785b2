# SPDX-License-Identifier: Apache-2.0
"""Elastic training with MXNet: a job goes on if workers are lost, and takes in new ones.

In a script:

    @hvd.elastic.run
    def train(state):
        while state.batch < batches:
            ...
            state.batch += 1
            state.commit()

    train(hvd.elastic.MXNetState(model=net, trainer=trainer, batch=0))
"""

from horovod.elastic.state.state import ObjectState, State
from horovod.elastic.worker.decorator import run
from horovod.mxnet.elastic_state import MXNetState

__all__ = ["MXNetState", "ObjectState", "State", "run"]
