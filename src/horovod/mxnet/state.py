# SPDX-License-Identifier: Apache-2.0
"""Equal start values on all ranks: parameters, and any Python object, from one rank to the others."""

from __future__ import annotations

import math
from typing import Any

import mxnet as mx
from mxnet.gluon.parameter import Parameter, ParameterDict
from mxnet.ndarray import NDArray

from horovod.core import context
from horovod.core.exceptions import InvalidRequestError
from horovod.core.objects import allgather_object, broadcast_object, check_same_keys
from horovod.core.process_sets import global_process_set
from horovod.core.wording import quoted
from horovod.mxnet.errors import raising_mxnets
from horovod.mxnet.ops import broadcast_
from horovod.mxnet.tensors import collectives

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]

_OPERATION = "broadcast_parameters"


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Overwrites parameters with those of the root, a world rank.

    `params`: what net.collect_params() of Gluon gives, or one of the dicts of Module.get_params(). A parameter whose
    shape is not known yet follows when it gets its values: in the first forward pass, or when it is loaded. `prefix`:
    before the names, different for each of several models. Returns at once, but for the check that all ranks have the
    same names; reading a parameter waits for it. Raises ValueError for anything else, HorovodInternalError if
    the names differ.
    """
    try:
        named = _named(params)
    except InvalidRequestError as error:
        collectives.refuse("allgather", f"{_OPERATION}.keys.t", error)  # what the others wait in
    names = [f"{prefix or ''}{name}" for name, _ in named]
    with raising_mxnets():
        check_same_keys(_OPERATION, names, global_process_set)
    context.note_replicas(0 if value.shape is None else math.prod(value.shape) for _, value in named)
    for name, (_, value) in zip(names, named, strict=True):
        if isinstance(value, Parameter) and value._data is None:
            _broadcast_once_made(value, root_rank, name)
        else:
            _broadcast(value, root_rank, name)


def _named(params: Any) -> list[tuple[str, Any]]:
    if not isinstance(params, (dict, ParameterDict)):
        raise InvalidRequestError(
            f"{_OPERATION}: expected a dict of parameters, got {type(params).__name__}\n"
            "hint: give net.collect_params(), or one of what module.get_params() returns"
        )
    named: list[tuple[str, Any]] = sorted(params.items())
    for name, value in named:
        if not isinstance(value, (NDArray, Parameter)):
            raise InvalidRequestError(
                f"{_OPERATION}: {quoted(name)} is a {type(value).__name__}: expected an array or a parameter"
            )
        if isinstance(value, Parameter) and value._data is None and not value._deferred_init:
            raise InvalidRequestError(
                f"{_OPERATION}: {quoted(name)} is not initialized\nhint: call net.initialize() first"
            )
    return named


def _broadcast(value: Any, root_rank: int, name: str) -> None:
    first, *others = value.list_data() if isinstance(value, Parameter) else [value]
    with mx.autograd.pause():  # a parameter may get its shape in a forward pass
        broadcast_(first, root_rank, f"parameter.{name}")
    for other in others:
        first.copyto(other)


def _broadcast_once_made(parameter: Any, root_rank: int, name: str) -> None:
    initialize = parameter._init_impl

    def initialize_and_broadcast(data: Any, devices: Any) -> None:
        parameter._init_impl = initialize
        initialize(data, devices)
        _broadcast(parameter, root_rank, name)

    parameter._init_impl = initialize_and_broadcast
