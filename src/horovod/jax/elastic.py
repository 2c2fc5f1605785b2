# SPDX-License-Identifier: Apache-2.0
"""Elastic training with JAX: a job goes on if workers are lost, and takes in new ones.

In a script:

    @hvd.elastic.run
    def train(state):
        while state.step < steps:
            state.params, state.opt_state, loss = step(state.params, state.opt_state, next_batch(state.step))
            state.step += 1
            state.commit()

    train(hvd.elastic.JaxState(params, opt_state, step=0))
"""

from horovod.elastic.state.state import ObjectState, State
from horovod.elastic.worker.decorator import run
from horovod.jax.elastic_state import JaxState

__all__ = ["JaxState", "ObjectState", "State", "run"]
