# SPDX-License-Identifier: Apache-2.0
"""KerasState: a model of tf.keras, which is Keras 3 or tf-keras, its optimizer and plain values."""

from __future__ import annotations

from typing import Any

from horovod.tensorflow.elastic_state import TensorFlowKerasState

__all__ = ["KerasState"]


class KerasState(TensorFlowKerasState):
    """A state of a Keras model, its optimizer (without, the one that the model is compiled with) and plain values.

    Raises ValueError if the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, None, **kwargs)
