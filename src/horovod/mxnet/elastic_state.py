# SPDX-License-Identifier: Apache-2.0
"""MXNetState: networks, arrays, trainers and plain values that training continues from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxnet.gluon import Block, Trainer
from mxnet.gluon.parameter import ParameterDict
from mxnet.ndarray import NDArray

from horovod.core.context import rank
from horovod.core.exceptions import InvalidRequestError
from horovod.core.objects import broadcast_object
from horovod.core.variables import Array
from horovod.core.wording import quoted
from horovod.elastic.state.handlers import HandledState, StateHandler
from horovod.elastic.state.variables import VariablesHandler
from horovod.mxnet.shim import forget_failures

__all__ = ["MXNetState"]


class MXNetState(HandledState):
    """A state of Gluon networks (or their parameters), dicts of arrays, trainers, and plain values.

    Each keyword becomes an attribute; any name may be used. Networks, arrays and trainers are changed in place; other
    values are replaced. Raises ValueError for parameters without values.
    """

    def __init__(self, params: Any = None, trainer: Any = None, **kwargs: Any) -> None:
        values = {"params": params, "trainer": trainer, **kwargs}
        handlers = {
            name: handler for name, value in values.items() if (handler := _handler_of(value, name)) is not None
        }
        plain = {name: value for name, value in values.items() if name not in handlers}
        super().__init__(broadcast_object, rank, handlers, **plain)

    def restore(self) -> None:
        # Otherwise reading an array would raise failures of the world that is over.
        forget_failures()
        super().restore()


class _TrainerHandler(StateHandler):
    """The optimizer's slots and counters, with its options, as Trainer.save_states() has them."""

    def __init__(self, trainer: Any, name: str) -> None:
        super().__init__(trainer)
        self._name = name
        self._saved = b""
        self.save()

    def save(self) -> None:
        self._saved = self._states()

    def restore(self) -> None:
        self._load(self._saved)

    def sync(self) -> None:
        self._load(broadcast_object(self._states(), 0, f"elastic.{self._name}"))

    def _states(self) -> bytes:
        trainer = self.value
        if not trainer._kv_initialized:
            trainer._init_kvstore()
        if trainer._params_to_init:
            trainer._init_params()
        states: bytes = trainer._updaters[0].get_states(dump_optimizer=True)
        return states

    def _load(self, states: bytes) -> None:
        trainer = self.value
        updater = trainer._updaters[0]
        updater.set_states(states)
        trainer._optimizer = updater.optimizer
        trainer._optimizer.param_dict = dict(enumerate(trainer._params))


class _Access:
    """MXNet raises what has failed when an array is read: before it takes the place of what is saved."""

    def read(self, arrays: Sequence[Any]) -> list[Array]:
        return [array.asnumpy() for array in arrays]

    def write(self, arrays: Sequence[Any], values: Sequence[Array]) -> None:
        for array, value in zip(arrays, values, strict=True):
            array[:] = value


def _handler_of(value: Any, name: str) -> StateHandler | None:
    if isinstance(value, Trainer):
        return _TrainerHandler(value, name)
    is_dict_of_arrays = isinstance(value, dict) and value and all(isinstance(one, NDArray) for one in value.values())
    if isinstance(value, (Block, ParameterDict)) or is_dict_of_arrays:
        return VariablesHandler(value, name, _Access(), _arrays_of)
    return None


def _arrays_of(value: Any) -> list[Any]:
    """By name: the ranks' dicts may have other orders."""
    named = value.collect_params() if isinstance(value, Block) else value
    return [_array_of(name, named[name]) for name in sorted(named.keys())]


def _array_of(name: str, value: Any) -> Any:
    if isinstance(value, NDArray):
        return value
    if value._data is None:
        raise InvalidRequestError(
            f"MXNetState: the parameter {quoted(name)} has no values yet\n"
            "hint: net.initialize(), and a forward pass if shapes are not known, before the state is made"
        )
    return value.list_data()[0]
