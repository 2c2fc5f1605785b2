# SPDX-License-Identifier: Apache-2.0
"""TorchState: models, optimizers, samplers and plain values that training continues from."""

from __future__ import annotations

from typing import Any

from horovod.core.context import rank
from horovod.elastic.state.handlers import HandledState
from horovod.torch.elastic_handlers import handler_of
from horovod.torch.state import broadcast_object

__all__ = ["TorchState"]


class TorchState(HandledState):
    """A state of PyTorch's objects, which are changed in place, and of plain values, which are replaced.

    Each keyword becomes an attribute. Models, optimizers, ElasticSamplers and whatever else has state_dict() and
    load_state_dict() keep their identity. Other values are copied deeply.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        values = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: handler for name, value in values.items() if (handler := handler_of(value)) is not None}
        plain = {name: value for name, value in values.items() if name not in handlers}
        super().__init__(broadcast_object, rank, handlers, **plain)
