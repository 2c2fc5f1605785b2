# SPDX-License-Identifier: Apache-2.0
"""A state with a model of Keras and its optimizer, whichever Keras that is. Imports none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.core.context import rank
from horovod.core.exceptions import InvalidRequestError
from horovod.core.objects import broadcast_object
from horovod.elastic.state.handlers import HandledState
from horovod.elastic.state.variables import Access, VariablesHandler

__all__ = ["KerasModelState", "build_optimizer", "optimizer_variables"]


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Its slots, and what else it changes in a step."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the slots, as the first update would."""
    if hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(list(variables))
    elif hasattr(optimizer, "build") and not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        optimizer.build(list(variables))


class KerasModelState(HandledState):
    """A model that is built, its optimizer, and plain values. `optimizer`: None if the model is not trained here.

    The optimizer's slots are made now, so that all ranks have them. Seeds of random layers are saved and restored, but
    stay each rank's own. Raises ValueError if the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any, access: Access, **kwargs: Any) -> None:
        if not getattr(model, "built", False) or not model.weights:
            raise InvalidRequestError(
                f"{type(self).__name__}: the model is not built, so it has no weights yet\n"
                "hint: model.build(input_shape), or call the model on a batch, before the state is made"
            )
        handlers: dict[str, VariablesHandler] = {"model": _Model(model, "model", access, _variables, _weights)}
        if optimizer is not None:
            build_optimizer(optimizer, model.trainable_variables)
            handlers["optimizer"] = _Optimizer(optimizer, "optimizer", access, _with_rate)
        else:
            self.optimizer = None
        super().__init__(broadcast_object, rank, handlers, **kwargs)


class _Model(VariablesHandler):
    def finish(self) -> None:
        if hasattr(self.value, "jax_state_sync"):
            self.value.jax_state_sync()  # while it is trained, JAX holds the values elsewhere: the optimizer's, too
        super().finish()


class _Optimizer(VariablesHandler):
    def reset(self) -> None:
        """A step that sums the gradients of several passes begins anew."""
        for optimizer in (self.value, getattr(self.value, "inner_optimizer", None)):
            sums = getattr(optimizer, "_hvd_accumulation", None)
            if sums is not None:
                sums.restart()


def _with_rate(optimizer: Any) -> list[Any]:
    """The optimizer's variables and its learning rate, which tf-keras leaves out. A schedule is not a variable."""
    variables = optimizer_variables(optimizer)
    rate = getattr(optimizer, "learning_rate", None)
    return variables if not hasattr(rate, "assign") or any(one is rate for one in variables) else [*variables, rate]


def _weights(model: Any) -> list[Any]:
    return list(model.weights)


def _variables(model: Any) -> list[Any]:
    """The weights, and the seeds of random layers."""
    return list(model.variables)
