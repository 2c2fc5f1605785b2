# SPDX-License-Identifier: Apache-2.0
"""check_replicas: variables of TensorFlow, models and optimizers, as parts with checksums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.elastic.state.keras_state import optimizer_variables
from horovod.gradients import replica_check
from horovod.gradients.replica_check import Part, numbered, variables_of

__all__ = ["check_replicas"]


def check_replicas(model: Any, optimizer: Any = None, *, process_set: ProcessSet = global_process_set) -> None:
    """Compares all bits of the ranks' variables, and of the optimizer's. Blocks; all ranks call it.

    model: its trainable variables are compared; or a list of variables of any dtype and shape. optimizer: of Keras.
    Raises HorovodInternalError on all ranks if some differ: it names the first variable, and the ranks that are unlike
    the others. Raises ValueError for anything that has no variables, and inside of tf.function.
    """

    def describe() -> Iterator[Part]:
        if not tf.executing_eagerly():
            raise InvalidRequestError(
                "check_replicas cannot be part of a function or graph\nhint: call it between two steps, eagerly"
            )
        yield from numbered(variables_of(model), _array_of)
        if optimizer is not None:
            yield from numbered(optimizer_variables(optimizer), _array_of, what="optimizer variable")

    replica_check.check_replicas(describe, process_set)


def _array_of(variable: Any) -> Any:
    return variable.numpy()
