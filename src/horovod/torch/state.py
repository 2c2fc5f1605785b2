# SPDX-License-Identifier: Apache-2.0
"""Equal start values on all ranks: parameters, optimizer state, and any Python object, from one rank to the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from horovod.core import context
from horovod.core.exceptions import InvalidRequestError, MismatchError
from horovod.core.objects import allgather_object, broadcast_object, check_same_keys
from horovod.core.operations import Operation, run_all
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.wording import counted, quoted, shown
from horovod.torch.tensors import collectives

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

_OBJECTS = (bool, int, float, str, bytes, type(None))
# The name under which the ranks tell each other which keys they have.
_KEYS = "broadcast_parameters.keys"
_STRUCTURE = "optimizer_state.structure"
_KINDS = "optimizer_state.kinds"
# The remedy if one of these is given to broadcast_parameters.
_HINTS = {
    torch.nn.Module: "give model.state_dict() or model.named_parameters()",
    torch.optim.Optimizer: "broadcast_optimizer_state(optimizer, root_rank) is for optimizers",
}


def broadcast_parameters(params: Any, root_rank: int, *, process_set: ProcessSet = global_process_set) -> None:
    """Overwrites parameters with those of the root, a world rank.

    `params`: a state_dict, or named pairs as model.named_parameters().

    Tensors are broadcast in place. A state_dict's numbers, strings and None are replaced in the dict that was given.
    Raises ValueError for anything else, naming its key; HorovodInternalError if the ranks' keys, or their tensors'
    shapes or dtypes, differ.
    """
    try:
        pairs = _named(params)
    except InvalidRequestError as error:
        collectives.refuse("allgather", f"{_KEYS}.t", error, process_set)  # what the others wait in
    tensors = [(name, value) for name, value in pairs if isinstance(value, Tensor)]
    objects = {name: value for name, value in pairs if not isinstance(value, Tensor)}
    keys = [name if isinstance(value, Tensor) else f"{name} (no tensor)" for name, value in pairs]
    check_same_keys("broadcast_parameters", keys, process_set)
    context.note_replicas(value.numel() for _, value in tensors if not torch.nn.parameter.is_lazy(value))
    _broadcast_all(tensors, root_rank, process_set)
    if objects:
        received = broadcast_object(objects, root_rank, "broadcast_parameters.objects", process_set)
        for name, value in received.items():
            params[name] = value


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank's optimizer the root's options and state.

    Never runs a step: state that only the root has is created on this rank; state that the root lacks is deleted.
    `model` is accepted for old scripts. Raises TypeError for anything but an optimizer, ValueError for LBFGS, whose
    state is not a fixed set of tensors, and HorovodInternalError, before anything is changed, if the ranks' optimizers
    differ in class, parameter groups or the parameters' shapes.
    """
    try:
        _check_kind(optimizer)
    except (InvalidRequestError, TypeError) as error:
        collectives.refuse("broadcast", f"{_STRUCTURE}.sz", error, process_set)  # what the others wait in
    structure = broadcast_object(_structure(optimizer), root_rank, _STRUCTURE, process_set)
    _check_alike(optimizer, structure, root_rank, process_set)
    groups = optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    for group, options in zip(groups, structure["options"], strict=True):
        for key in [key for key in group if key != "params" and key not in options]:
            del group[key]
        group.update(options)
    tensors = []
    for index, (parameter, described) in enumerate(zip(parameters, structure["state"], strict=True)):
        if described is None:
            optimizer.state.pop(parameter, None)
            continue
        state = optimizer.state[parameter]
        for key in [key for key in state if key not in described]:
            del state[key]
        for key, (kind, value) in described.items():
            if kind == "object":
                state[key] = value
                continue
            state[key] = _fitting(state.get(key), value, parameter)
            tensors.append((f"optimizer_state.{index}.{key}", state[key]))
    _broadcast_all(tensors, root_rank, process_set)


def _named(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        if not all(isinstance(name, str) for name in params):
            raise InvalidRequestError("broadcast_parameters: expected a dict whose keys are names")
        pairs = sorted(params.items())
        for name, value in pairs:
            if not isinstance(value, (Tensor, *_OBJECTS)):
                raise InvalidRequestError(
                    f"broadcast_parameters: {quoted(name)} is a {type(value).__name__}: expected a tensor, a number, a "
                    "string or None"
                )
        return pairs
    hint = next((f"\nhint: {hint}" for kind, hint in _HINTS.items() if isinstance(params, kind)), "")
    if not isinstance(params, Iterable) or isinstance(params, (str, Tensor)):
        raise InvalidRequestError(
            f"broadcast_parameters: expected a dict or a list of pairs, got {type(params).__name__}{hint}"
        )
    pairs = [item if isinstance(item, tuple) else (str(index), item) for index, item in enumerate(params)]
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRequestError(
                f"broadcast_parameters: expected pairs of a name and a tensor, got {shown(pair)}{hint}"
            )
        name, value = pair
        if value is not None and not isinstance(value, Tensor):
            raise InvalidRequestError(
                f"broadcast_parameters: {quoted(name)} is a {type(value).__name__}: expected a tensor{hint}"
            )
    return [(name, value) for name, value in pairs if value is not None]


def _broadcast_all(tensors: list[tuple[str, Tensor]], root_rank: int, process_set: ProcessSet) -> None:
    def start(pair: tuple[str, Tensor]) -> Operation:
        name, tensor = pair
        return collectives.broadcast(tensor.detach(), root_rank, name, process_set, True)

    run_all(start, tensors)


def _check_kind(optimizer: Any) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidRequestError(
            "broadcast_optimizer_state: LBFGS keeps its state in Python lists; it is not supported"
        )
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
        is_model = isinstance(optimizer, torch.nn.Module)
        raise TypeError(
            f"broadcast_optimizer_state: expected a torch.optim.Optimizer, got {type(optimizer).__name__}"
            + ("\nhint: broadcast_parameters(model.state_dict(), root_rank) is for models" if is_model else "")
        )


def _check_alike(
    optimizer: torch.optim.Optimizer, structure: dict[str, Any], root_rank: int, process_set: ProcessSet
) -> None:
    """Compares this rank's optimizer with the root's. All ranks raise the same error if one differs."""
    differences = allgather_object(_difference(_kind(optimizer), structure["kind"]), _KINDS, process_set=process_set)
    differing = [
        (rank, text) for rank, text in zip(process_set.ranks or [], differences, strict=True) if text is not None
    ]
    if differing:
        rank, text = differing[0]
        others = f"; nor is that of {counted(len(differing) - 1, 'other rank')}" if len(differing) > 1 else ""
        raise MismatchError(
            f"broadcast_optimizer_state: the optimizer of rank {rank} is not like that of rank {root_rank}, the root: "
            f"{text}{others} (this is rank {context.rank()})\nhint: build model and optimizer alike on all ranks"
        )


def _kind(optimizer: torch.optim.Optimizer) -> tuple[str, list[list[tuple[int, ...]]]]:
    """The parts that must be alike: the class, and the shapes of the parameters by group."""
    kind = type(optimizer)
    groups = [[_shape(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    return f"{kind.__module__}.{kind.__name__}", groups


def _shape(parameter: Tensor) -> tuple[int, ...]:
    return () if torch.nn.parameter.is_lazy(parameter) else tuple(parameter.shape)


def _difference(mine: Any, expected: Any) -> str | None:
    if mine[0] != expected[0]:
        return f"expected a {expected[0]}, got a {mine[0]}"
    sizes = [[len(group) for group in groups] for groups in (expected[1], mine[1])]
    if sizes[0] != sizes[1]:
        return f"expected parameter groups of {sizes[0]} parameters, got {sizes[1]}"
    for number, (theirs, own) in enumerate(zip(expected[1], mine[1], strict=True)):
        for index, (shape, got) in enumerate(zip(theirs, own, strict=True)):
            if shape != got:
                return f"parameter {index} of group {number}: expected shape {list(shape)}, got {list(got)}"
    return None


def _structure(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything but the tensors' values: options by group, and by parameter each state value's kind."""
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    states: list[dict[Any, Any] | None] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            states.append(None if state is None else {key: _described(value) for key, value in state.items()})
    return {"kind": _kind(optimizer), "options": options, "state": states}


def _described(value: Any) -> tuple[str, Any]:
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return "tensor", (tuple(value.shape), value.dtype, value.is_cpu)
    return "object", value


def _fitting(mine: Any, described: tuple[tuple[int, ...], torch.dtype, bool], parameter: Tensor) -> Tensor:
    """This rank's tensor if it has the root's shape and dtype, else a new one."""
    shape, dtype, on_host = described
    if isinstance(mine, Tensor) and tuple(mine.shape) == shape and mine.dtype == dtype and mine.is_cpu == on_host:
        return mine
    # Adam keeps its step counter on the host whatever the parameter's device is.
    return (
        torch.empty(shape, dtype=dtype, device="cpu") if on_host else parameter.detach().new_empty(shape, dtype=dtype)
    )
