# SPDX-License-Identifier: Apache-2.0
"""Elastic training for PyTorch: `hvd.elastic.run`, the state that training continues from, and a sampler.

In a script:

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0))
"""

from horovod.core.basics import init, shutdown
from horovod.core.missing import watch
from horovod.elastic.state.state import ObjectState, State
from horovod.elastic.worker.decorator import run
from horovod.elastic.worker.wrapper import run_fn
from horovod.torch.elastic import sampler, state  # old submodules are attributes
from horovod.torch.elastic_handlers import get_handler_registry, set_handler_registry
from horovod.torch.elastic_sampler import ElasticSampler
from horovod.torch.elastic_state import TorchState

__all__ = [
    "ElasticSampler",
    "ObjectState",
    "State",
    "TorchState",
    "get_handler_registry",
    "init",
    "run",
    "run_fn",
    "sampler",
    "set_handler_registry",
    "shutdown",
    "state",
]

watch(__name__)
