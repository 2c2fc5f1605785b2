# SPDX-License-Identifier: Apache-2.0
"""check_replicas, and what an optimizer compares: parameters, options and state, as parts with checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from horovod.core.exceptions import InvalidRequestError
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.wording import shown
from horovod.gradients import replica_check
from horovod.gradients.replica_check import Part, nested, of_value

__all__ = ["check_replicas", "of_options", "options_of", "of_state", "of_tensor"]


def check_replicas(
    model: Any, optimizer: torch.optim.Optimizer | None = None, *, process_set: ProcessSet = global_process_set
) -> None:
    """Compares all bits of the ranks' parameters, and of the optimizer's options and state. Blocks; all ranks call it.

    model: a torch.nn.Module, whose parameters are compared, or a state_dict, or named pairs as
    model.named_parameters(). Buffers, such as the running statistics of BatchNorm, differ between ranks by design:
    model.state_dict() includes them. Tensors may have any dtype and shape, on the CPU or a GPU. Raises
    HorovodInternalError on all ranks if some differ: it names the first tensor, and the ranks that are unlike the
    others. Raises ValueError for anything that is not a model.
    """

    def describe() -> Iterator[Part]:
        named = _named(model)
        for name, value in named:
            yield from nested(name, value, _part)
        if optimizer is not None:
            yield from of_options(optimizer)
            yield from of_state(optimizer, {value: name for name, value in named if isinstance(value, Tensor)})

    replica_check.check_replicas(describe, process_set)


def of_options(optimizer: Any) -> Iterator[Part]:
    """The options of an optimizer, as parts."""
    for name, value in options_of(optimizer):
        yield of_value(name, value)


def options_of(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """The options of an optimizer, such as its learning rate, by parameter group."""
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, Tensor) and value.numel() == 1:
                if value.is_cuda and torch.cuda.is_current_stream_capturing():
                    continue
                value = value.item()
            if key != "params" and isinstance(value, (bool, int, float, tuple)):
                yield f"{key} of group {index}", value


def of_state(optimizer: Any, names: Mapping[Tensor, str]) -> Iterator[Part]:
    """The state of each parameter. `names`: of parameters that have one; others are called by group and place."""
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            name = names.get(parameter, f"parameter {index} of group {group_index}")
            yield from nested(f"state of {name}", optimizer.state.get(parameter, {}), _part)


def of_tensor(name: str, tensor: Tensor, *, whole: bool = True) -> Part:
    """A tensor of any layout, by its bytes; on a GPU it is copied to the host."""
    if torch.nn.parameter.is_lazy(tensor):
        return Part(name, "no shape yet", 0)
    tensor = tensor.detach()
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        parts = [of_tensor(name, part, whole=whole) for part in (tensor.values(), tensor.indices())]
        return of_value(name, parts)._replace(kind=f"sparse {kind}")
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    bytes_of_it = replica_check.chosen(tensor.reshape(-1), whole=whole).resolve_conj().resolve_neg().contiguous()
    return Part(name, kind, replica_check.checksum(bytes_of_it.view(torch.uint8).cpu().numpy()))


def _part(name: str, value: Any) -> Part | None:
    return of_tensor(name, value) if isinstance(value, Tensor) else None


def _named(model: Any) -> list[tuple[str, Any]]:
    if isinstance(model, torch.nn.Module):
        return list(model.named_parameters())
    if isinstance(model, Mapping):
        return [(str(name), value) for name, value in model.items()]
    pairs: list[Any] = list(model) if isinstance(model, Iterable) and not isinstance(model, (str, Tensor)) else [None]
    if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise InvalidRequestError(
            f"check_replicas: expected a module, a dict or pairs of a name and a tensor, got {shown(model)}\n"
            "hint: give the model, or model.state_dict(); an optimizer is the second argument"
        )
    return pairs
