# SPDX-License-Identifier: Apache-2.0
"""check_replicas, and what a trainer compares: parameters and the optimizer's state, as parts with checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from mxnet.gluon import Block, Trainer
from mxnet.gluon.parameter import Parameter
from mxnet.ndarray import NDArray

from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.wording import shown
from horovod.gradients import replica_check
from horovod.gradients.replica_check import Part, nested, of_array, of_value

__all__ = ["check_replicas", "of_parameters", "of_trainer"]


def check_replicas(model: Any, optimizer: Any = None, *, process_set: ProcessSet = global_process_set) -> None:
    """Compares all bits of the ranks' parameters, and of a trainer's state. Blocks; all ranks call it.

    model: a block of Gluon, whose trained parameters are compared, or what net.collect_params() or
    module.get_params() returns. Others, such as the running averages of BatchNorm, differ between ranks by design;
    net.collect_params() includes them. optimizer: a gluon.Trainer. Raises HorovodInternalError on all ranks if some
    differ: it names the first array, and the ranks that are unlike the others. Raises ValueError for anything else.
    """

    def describe() -> Iterator[Part]:
        if isinstance(model, Block):
            parameters = model.collect_params().values()
            yield from of_parameters(one for one in parameters if one.grad_req != "null")
        elif hasattr(model, "values"):
            yield from of_parameters(value for _, value in sorted(model.items()))
        else:
            raise InvalidRequestError(
                f"check_replicas: expected a block or a dict of parameters, got {shown(model)}\n"
                "hint: give the net, or net.collect_params()"
            )
        if optimizer is not None:
            yield from of_trainer(optimizer)

    replica_check.check_replicas(describe, process_set)


def of_parameters(parameters: Iterable[Any], *, whole: bool = True) -> Iterator[Part]:
    """Parameters or arrays, which the ranks know by their places: their names have counters."""
    for number, parameter in enumerate(parameters):
        name, label = f"parameter {number}", getattr(parameter, "name", None)
        label = f"{name}: {label}" if label else ""
        if isinstance(parameter, Parameter) and parameter._data is None:
            yield Part(name, "no shape yet", 0, label)
            continue
        array = parameter.data() if isinstance(parameter, Parameter) else parameter
        yield of_array(name, _host_array(array), whole=whole, label=label)


def of_trainer(trainer: Any) -> Iterator[Part]:
    """The options of a trainer's optimizer, and its state, such as momenta."""
    if not isinstance(trainer, Trainer):
        raise InvalidRequestError(f"check_replicas: expected a gluon.Trainer as optimizer, got {shown(trainer)}")
    yield of_value("learning_rate", trainer.learning_rate)
    for updater in trainer._updaters:
        yield from nested("state", updater.states, _part)


def _host_array(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array.asnumpy())


def _part(name: str, value: Any) -> Part | None:
    return of_array(name, _host_array(value)) if isinstance(value, NDArray) else None
