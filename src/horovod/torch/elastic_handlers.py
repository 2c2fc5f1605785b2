# SPDX-License-Identifier: Apache-2.0
"""How values of PyTorch are saved, restored and sent to the other ranks, in place: the script keeps its objects.

A value gets the handler of the first type in the registry that it is an instance of. Users may register their own.
"""

from __future__ import annotations

import collections
import copy
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from horovod.elastic.state.handlers import StateHandler
from horovod.torch.elastic_sampler import ElasticSampler
from horovod.torch.state import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateDictHandler",
    "StateHandler",
    "get_handler_registry",
    "set_handler_registry",
]


class StateDictHandler(StateHandler):
    """For what has state_dict() and load_state_dict(), such as a scheduler of learning rates."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved: Any = None
        self.save()

    def save(self) -> None:
        self._saved = copied(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        # The loaded values may stay in use as they are, and the saved ones must not change.
        self.value.load_state_dict(copied(self._saved))

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), root_rank=0))


class ModelStateHandler(StateDictHandler):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)  # copies
        for parameter in self.value.parameters():
            parameter.grad = None  # part of a step that is undone

    def sync(self) -> None:
        state = self.value.state_dict()
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        broadcast_parameters(tensors, root_rank=0)
        if len(tensors) < len(state):  # what modules keep beside tensors: get_extra_state()
            others = {name: value for name, value in state.items() if name not in tensors}
            self.value.load_state_dict({**tensors, **broadcast_object(others, root_rank=0)})


class OptimizerStateHandler(StateDictHandler):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)

    def reset(self) -> None:
        reducer = getattr(self.value, "_hvd_reducer", None)
        if reducer is not None:
            reducer.abandon()  # reductions of the world that is over


class SamplerStateHandler(StateDictHandler):
    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)

    def reset(self) -> None:
        self.value.reset()


@runtime_checkable
class _HasStateDict(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (_HasStateDict, StateDictHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """The pairs of a type and its handler, in the order in which they are tried."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces the registry; a TorchState that exists keeps its handlers."""
    global _registry
    _registry = registry


def handler_of(value: Any) -> StateHandler | None:
    """A handler for the value, None if it has none."""
    kind = next((handler for kind, handler in _registry if isinstance(value, kind)), None)
    return None if kind is None else kind(value)


def copied(value: Any, into: Any = None) -> Any:
    """A deep copy of a state dict. Tensors are copied into those of `into`, an older copy, if they fit."""
    if isinstance(value, Tensor):
        value = value.detach()
        fits = isinstance(into, Tensor) and (into.shape, into.dtype, into.device) == (
            value.shape,
            value.dtype,
            value.device,
        )
        return into.copy_(value) if fits else value.clone()
    if type(value) in (list, tuple):
        old = into if type(into) is type(value) and len(into) == len(value) else [None] * len(value)
        return type(value)(copied(item, before) for item, before in zip(value, old, strict=True))
    if type(value) in (dict, collections.OrderedDict):
        old = into if isinstance(into, dict) else {}
        copy_of = type(value)((key, copied(item, old.get(key))) for key, item in value.items())
        if hasattr(value, "_metadata"):  # the versions of a model's modules
            copy_of._metadata = value._metadata
        return copy_of
    return copy.deepcopy(value)
