# SPDX-License-Identifier: Apache-2.0
"""Elastic training for PyTorch: `hvd.elastic.run`, the state that training continues from, and a sampler.

@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, epochs):
        ...
        state.commit()

train(hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.elastic.state import ObjectState, State
from horovod.elastic.worker import run_fn
from horovod.torch.elastic_handlers import get_handler_registry, set_handler_registry
from horovod.torch.elastic_sampler import ElasticSampler
from horovod.torch.elastic_state import TorchState

__all__ = [
    "ElasticSampler",
    "ObjectState",
    "State",
    "TorchState",
    "get_handler_registry",
    "run",
    "set_handler_registry",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A training function `func(state, ...)` that goes on when workers are lost or join. For a decorator.

    In each world it starts from its top, with the state of the last cut: its loops begin with values of `state`.
    Between hvd.init() and this function there may be no operation, because a worker that joins is alone there.
    """
    return run_fn(func, lambda: None)
