# SPDX-License-Identifier: Apache-2.0
"""TensorFlowState and TensorFlowKerasState: variables, models and plain values that training continues from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.core.context import rank
from horovod.core.objects import broadcast_object
from horovod.core.variables import Array
from horovod.elastic.state.handlers import HandledState
from horovod.elastic.state.keras_state import KerasModelState
from horovod.elastic.state.variables import Access, AtOnce, VariablesHandler

__all__ = ["TensorFlowKerasState", "TensorFlowState"]


class TensorFlowState(HandledState):
    """A state of variables of TensorFlow and of plain values.

    variables: those that training changes; default, the global variables of a graph of TensorFlow 1. session: of such a
    graph; default, the current one. Nothing is broadcast before sync().
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        chosen = list(tf.compat.v1.global_variables() if variables is None else variables)
        access = _access(lambda: session or tf.compat.v1.get_default_session())
        handlers = {"variables": VariablesHandler(chosen, "variables", access, list)}
        self.session = session
        super().__init__(broadcast_object, rank, handlers, **kwargs)


class TensorFlowKerasState(KerasModelState):
    """A state of a Keras model, its optimizer and plain values.

    optimizer: default, the one that the model was compiled with. backend: the module `backend` of tf.keras, for graphs
    of TensorFlow 1. Raises ValueError if the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        access = _access(lambda: (backend or tf.compat.v1.keras.backend).get_session())
        super().__init__(model, optimizer or getattr(model, "optimizer", None), access, **kwargs)


class _InSession:
    """For variables of a graph of TensorFlow 1. Adds nothing to the graph, which may be finalized."""

    def __init__(self, session: Callable[[], Any]) -> None:
        self._session = session

    def read(self, variables: Sequence[Any]) -> list[Array]:
        values: list[Array] = self._session().run(list(variables)) if variables else []
        return values

    def write(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        waiting = list(zip(variables, values, strict=True))
        while waiting:
            # Variables that were made from one tensor take turns: in one run it has one value.
            fed: dict[Any, Array] = {}
            initializers, later = [], []
            for variable, value in waiting:
                initializer = variable.initializer
                if initializer.inputs[1] in fed:
                    later.append((variable, value))
                else:
                    fed[initializer.inputs[1]] = value
                    initializers.append(initializer)
            self._session().run(initializers, fed)
            waiting = later


def _access(session: Callable[[], Any]) -> Access:
    return AtOnce() if tf.compat.v1.executing_eagerly_outside_functions() else _InSession(session)
