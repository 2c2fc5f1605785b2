# SPDX-License-Identifier: Apache-2.0
"""KerasState: a model of Keras 3 on any backend, its optimizer and plain values that training continues from."""

from __future__ import annotations

from typing import Any

from horovod.elastic.state.keras_state import KerasModelState
from horovod.elastic.state.variables import AtOnce

__all__ = ["KerasState"]


class KerasState(KerasModelState):
    """A state of a Keras model, its optimizer and plain values.

    optimizer: default, the one that the model was compiled with. Raises ValueError if the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer or getattr(model, "optimizer", None), AtOnce(), **kwargs)
