# SPDX-License-Identifier: Apache-2.0
"""check_replicas, and what an optimizer compares: variables of Keras 3 and tf-keras, as parts with checksums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.elastic.state.keras_state import optimizer_variables
from horovod.gradients import replica_check
from horovod.gradients.replica_check import Part, numbered, variables_of
from horovod.gradients.step_check import floats_of
from horovod.keras import backends

__all__ = ["array_of", "check_replicas", "of_slots", "options_of"]


def check_replicas(model: Any, optimizer: Any = None, *, process_set: ProcessSet = global_process_set) -> None:
    """Compares all bits of the ranks' variables, and of the optimizer's. Blocks; all ranks call it.

    model: its trainable variables are compared; or a list of variables. Others, such as the moving averages of
    BatchNormalization, differ between ranks by design: give model.variables to include them. optimizer: by default the
    model's own, if it is compiled. Raises HorovodInternalError on all ranks if some differ: it names the first
    variable, and the ranks that are unlike the others. Raises ValueError for anything that has no variables, and in
    graphs. During fit(), callbacks.CheckReplicasCallback calls it.
    """

    def describe() -> Iterator[Part]:
        if backends.graph_backend() is not None:
            raise InvalidRequestError("check_replicas does not support graphs of TensorFlow 1")
        yield from numbered(variables_of(model), array_of)
        used = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if used is not None:
            yield from of_slots(used)

    replica_check.check_replicas(describe, process_set)


def of_slots(optimizer: Any) -> Iterator[Part]:
    """The optimizer's own variables: slots, iterations, the learning rate."""
    yield from numbered(optimizer_variables(optimizer), array_of, what="optimizer variable")


def options_of(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """The options of an optimizer: floats, and in a step that is compiled the learning rate's tensor or variable."""
    rate = optimizer.learning_rate
    rate = rate(optimizer.iterations) if callable(rate) else rate  # a schedule of tf-keras' old optimizers
    is_value = isinstance(rate, float) or backends.is_eager()
    traced = rate.value if isinstance(rate, keras.Variable) else rate
    yield "learning_rate", float(array_of(rate)) if is_value else traced
    yield from floats_of(optimizer)


def array_of(variable: Any) -> np.ndarray[Any, Any]:
    """The value of a variable, which has one now."""
    return np.asarray(variable.numpy() if hasattr(variable, "numpy") else keras.ops.convert_to_numpy(variable))
