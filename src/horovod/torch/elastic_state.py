# SPDX-License-Identifier: Apache-2.0
"""TorchState: models, optimizers, samplers and plain values that training continues from."""

from __future__ import annotations

from typing import Any

from horovod.core.context import rank
from horovod.elastic.state import ObjectState
from horovod.torch.elastic_handlers import StateHandler, handler_of
from horovod.torch.state import broadcast_object

__all__ = ["TorchState"]


class TorchState(ObjectState):
    """A state of PyTorch's objects, which are changed in place, and of plain values, which are replaced.

    Each keyword becomes an attribute. Models, optimizers, ElasticSamplers and whatever else has state_dict() and
    load_state_dict() keep their identity. Other values are copied deeply.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        self._handlers: dict[str, StateHandler] = {}
        plain: dict[str, Any] = {}
        for name, value in {"model": model, "optimizer": optimizer, **kwargs}.items():
            handler = handler_of(value)
            if handler is None:
                plain[name] = value
            else:
                self._handlers[name] = handler
                object.__setattr__(self, name, value)
        super().__init__(broadcast_object, rank, **plain)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()  # saves all of it

    def reset(self) -> None:
        for handler in self._handlers.values():
            handler.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
