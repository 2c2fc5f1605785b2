# SPDX-License-Identifier: Apache-2.0
"""Old import name of PyTorch's state and its handlers; re-exports only."""

from horovod.torch.elastic_handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)
from horovod.torch.elastic_state import TorchState

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]
