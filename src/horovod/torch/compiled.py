# SPDX-License-Identifier: Apache-2.0
"""The operations inside torch.compile, as graph operators torch.ops.horovod.*. No step of a gradient's way.

Each operator has what a compiler asks for: a fake form that tells shapes, and a gradient made of operators again. All
share one *effect*, so that no pass of the compiler drops, folds, repeats or reorders them: ranks may compile different
graphs, but must run their collectives in the same order. Nothing is checked ahead of time: core/collectives.py checks
the arguments and raises errors when the operator runs. An operator takes a list of tensors (one if the call is not
`grouped`) and the number of a process set.

The rows of an allgather's or alltoall's result are known at run time only. A graph that shall hold one needs
`torch._dynamo.config.capture_dynamic_output_shape_ops = True`; otherwise the compiler breaks the graph there. Inductor
cannot size the result of an operator with an effect, so each of the two is split: `<name>_run` has the effect and
returns a ticket and the row counts; `<name>`, without an effect, exchanges the ticket for the tensor.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from horovod.core.collectives import Reduction
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import SYNC
from horovod.core.process_sets import ProcessSet, global_process_set, set_of_lasting_number
from horovod.torch import autograd
from horovod.torch.tensors import collectives

__all__ = ["allgather", "allreduce", "alltoall", "barrier", "broadcast", "reducescatter", "refuse"]

# Parts of schemas: how to reduce (core/collectives.py's Reduction); a set's number, size, and this rank's index in it.
_HOW = "str? name, int? op, bool? average, float prescale, float postscale, int process_set"
_PLACE = "int process_set, int members, int index"


def _operator(
    name: str,
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    has_effect: bool = True,
) -> Any:
    """Defines torch.ops.horovod.<name>."""
    # An operator is one step for autograd, which is not to look into it.
    # Nor can it be captured into a CUDA graph. A list: PyTorch 2.11 takes no tag by itself.
    tags = {"tags": [torch._C.Tag.cudagraph_unsafe]} if hasattr(torch._C.Tag, "cudagraph_unsafe") else {}
    definition = torch.library.custom_op(
        f"horovod::{name}", torch.no_grad()(run), mutates_args=(), schema=schema, **tags
    )
    definition.register_fake(fake)
    if backward is not None:
        definition.register_autograd(backward, setup_context=_keep if has_effect else _keep_ticket)
    operator = getattr(torch.ops.horovod, name).default
    if has_effect:
        _register_effectful_op(operator, _EffectType.ORDERED)
    return operator


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """For the gradient: each tensor's rows, and the other arguments."""
    ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in inputs[0]]
    ctx.arguments = inputs[1:]


def _gradients(ctx: Any, results: Any) -> tuple[Any, ...]:
    return results, *[None] * len(ctx.arguments)


class _Unregistered(ProcessSet):
    """In place of an argument that is not a set, or of a set that was removed after the compilation.

    core/collectives.py refuses it, and tells the peers.
    """

    def __str__(self) -> str:
        return "the process_set of a compiled function"


def _set_of(number: int) -> ProcessSet:
    return set_of_lasting_number(number) or _Unregistered([])


def _number_of(process_set: ProcessSet | None) -> int:
    if process_set is None:
        return 0
    # Anything but a set is refused when the operator runs, too: a compiler hides errors that tracing raises.
    is_registered = isinstance(process_set, ProcessSet) and process_set.process_set_id is not None
    return process_set.lasting if is_registered else -1


def _place_of(process_set: ProcessSet | None) -> tuple[int, int, int]:
    # Read by the compiled function at every call, so that it is compiled anew in a world of another size.
    known = process_set if isinstance(process_set, ProcessSet) else global_process_set
    return _number_of(process_set), known.size() or 1, known.rank() or 0


def _flat(how: Reduction) -> tuple[int | None, bool | None, float, float, int]:
    op, average, prescale, postscale, process_set = how
    return op, average, prescale, postscale, _number_of(process_set)


def _reduction(op: int | None, average: bool | None, prescale: float, postscale: float, number: int) -> Reduction:
    return op, average, prescale, postscale, _set_of(number)


def _same_shapes(tensors: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _with_rows(tensors: Sequence[Tensor], rows: Sequence[Any]) -> list[Tensor]:
    return [tensor.new_empty((count, *tensor.shape[1:])) for tensor, count in zip(tensors, rows, strict=True)]


# The halves of operators whose result's rows are known at run time.

_results: dict[int, list[Tensor]] = {}  # by the ticket's number, for as long as its memory lives
_numbers = itertools.count()


def _ticket_for(results: list[Tensor]) -> Tensor:
    number = next(_numbers)
    ticket = torch.tensor([number])
    _results[number] = results
    weakref.finalize(ticket.untyped_storage(), _results.pop, number)
    return ticket


def _taken(tensors: list[Tensor], ticket: Tensor, *_: Any) -> list[Tensor]:
    # Copies: a compiler may run this twice, and write into what it got.
    return [result.clone() for result in _results[int(ticket)]]


def _taken_fake(tensors: list[Tensor], *_: Any) -> list[Tensor]:
    return _with_rows(tensors, [torch.library.get_ctx().new_dynamic_size() for _ in tensors])


def _keep_ticket(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """As _keep; not the ticket, which would keep the result."""
    _keep(ctx, inputs[:1] + inputs[3:], output)
    ctx.save_for_backward(inputs[2])


def _taking_operator(name: str, schema: str, backward: Callable[..., Any]) -> Any:
    """The second half: gives what the ticket stands for."""
    return _operator(name, schema, _taken, _taken_fake, backward, has_effect=False)


# Allreduce


def _allreduce(tensors: list[Tensor], grouped: bool, name: str | None, *how: Any) -> list[Tensor]:
    if grouped:
        results: list[Tensor] = collectives.grouped_allreduce(tensors, name, _reduction(*how), False, SYNC).wait()
        return results
    return [collectives.allreduce(tensors[0], name, _reduction(*how), False, SYNC).wait()]


def _allreduce_backward(ctx: Any, grads: list[Tensor]) -> Any:
    grouped, name, *how = ctx.arguments
    return _gradients(ctx, _allreduce_operator(grads, grouped, autograd.derived(name), *how))


_allreduce_operator = _operator(
    "allreduce", f"(Tensor[] tensors, bool grouped, {_HOW}) -> Tensor[]", _allreduce, _same_shapes, _allreduce_backward
)


def allreduce(tensors: Sequence[Tensor], grouped: bool, name: str | None, how: Reduction) -> list[Tensor]:
    """Runs allreduce and grouped_allreduce in a compiled function."""
    results: list[Tensor] = _allreduce_operator(list(tensors), grouped, name, *_flat(how))
    return results


# Allgather. A line of `rows` for each tensor: what each rank gave.


def _allgather_run(
    tensors: list[Tensor], grouped: bool, name: str | None, number: int, *_: int
) -> tuple[Tensor, Tensor]:
    process_set = _set_of(number)
    if grouped:
        pairs = collectives.grouped_allgather(tensors, name, process_set, SYNC, with_rows=True).wait()
    else:
        pairs = [collectives.allgather(tensors[0], name, process_set, SYNC, with_rows=True).wait()]
    return _ticket_for([result for result, _ in pairs]), torch.tensor([rows for _, rows in pairs])


def _allgather_run_fake(
    tensors: list[Tensor], grouped: bool, name: str | None, number: int, members: int, index: int
) -> tuple[Tensor, Tensor]:
    return torch.empty(1, dtype=torch.int64), torch.empty(len(tensors), members, dtype=torch.int64)


def _allgather_backward(ctx: Any, grads: list[Tensor]) -> Any:
    results = _allgather_gradient(grads, ctx.saved_tensors[0], ctx.rows, *ctx.arguments)
    return results, *[None] * (2 + len(ctx.arguments))


def _gradient_of_allgather(
    grads: list[Tensor], rows: Tensor, own_rows: list[int], grouped: bool, name: str | None, number: int
) -> list[Tensor]:
    lists, process_set = rows.tolist(), _set_of(number)
    if grouped:
        parts = autograd.gradient_of_grouped_allgather(grads, lists, name, process_set)
    else:
        parts = [autograd.gradient_of_allgather(grads[0], lists[0], name, process_set)]
    return [part.clone() for part in parts]  # its own memory, as the compiler was told


_allgather_gradient = _operator(
    "allgather_gradient",
    "(Tensor[] grads, Tensor rows, SymInt[] own_rows, bool grouped, str? name, int process_set) -> Tensor[]",
    _gradient_of_allgather,
    lambda grads, rows, own_rows, *_: _with_rows(grads, own_rows),
)
_allgather_run_operator = _operator(
    "allgather_run",
    f"(Tensor[] tensors, bool grouped, str? name, {_PLACE}) -> (Tensor, Tensor)",
    _allgather_run,
    _allgather_run_fake,
)
_allgather_operator = _taking_operator(
    "allgather",
    "(Tensor[] tensors, Tensor ticket, Tensor rows, bool grouped, str? name, int process_set) -> Tensor[]",
    _allgather_backward,
)


def allgather(
    tensors: Sequence[Tensor], grouped: bool, name: str | None, process_set: ProcessSet | None
) -> list[Tensor]:
    """Runs allgather and grouped_allgather in a compiled function."""
    sent, place = [tensor.detach() for tensor in tensors], _place_of(process_set)
    ticket, rows = _allgather_run_operator(sent, grouped, name, *place)
    results: list[Tensor] = _allgather_operator(list(tensors), ticket, rows, grouped, name, place[0])
    return results


# Broadcast


def _broadcast(tensors: list[Tensor], root_rank: int, name: str | None, number: int) -> list[Tensor]:
    return [collectives.broadcast(tensors[0], root_rank, name, _set_of(number), False, SYNC).wait()]


_broadcast_gradient = _operator(
    "broadcast_gradient",
    "(Tensor[] grads, int root_rank, str? name, int process_set) -> Tensor[]",
    lambda grads, root_rank, name, number: [autograd.gradient_of_broadcast(grads[0], root_rank, name, _set_of(number))],
    _same_shapes,
)
_broadcast_operator = _operator(
    "broadcast",
    "(Tensor[] tensors, int root_rank, str? name, int process_set) -> Tensor[]",
    _broadcast,
    _same_shapes,
    lambda ctx, grads: _gradients(ctx, _broadcast_gradient(grads, *ctx.arguments)),
)


def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet | None) -> Tensor:
    """Runs broadcast in a compiled function."""
    return _broadcast_operator([tensor], root_rank, name, _number_of(process_set))[0]


# Alltoall. `splits` comes as a list or as a tensor, or neither.


def _alltoall_run(
    tensor: Tensor, listed: list[int] | None, splits: Tensor | None, name: str | None, number: int, *_: int
) -> tuple[Tensor, Tensor]:
    given = listed if splits is None else splits
    result, received = collectives.alltoall(tensor, given, name, _set_of(number), SYNC).wait()
    return _ticket_for([result]), received


def _alltoall_run_fake(tensor: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return torch.empty(1, dtype=torch.int64), torch.empty(arguments[-2], dtype=torch.int32)


def _alltoall_backward(ctx: Any, grads: list[Tensor]) -> Any:
    results = _alltoall_gradient(grads, ctx.saved_tensors[0], ctx.rows, *ctx.arguments)
    return results, *[None] * (2 + len(ctx.arguments))


_alltoall_gradient = _operator(
    "alltoall_gradient",
    "(Tensor[] grads, Tensor received, SymInt[] rows, str? name, int process_set) -> Tensor[]",
    lambda grads, received, rows, name, number: [
        autograd.gradient_of_alltoall(grads[0], received.tolist(), rows[0], name, _set_of(number))
    ],
    lambda grads, received, rows, *_: _with_rows(grads, rows),
)
_alltoall_run_operator = _operator(
    "alltoall_run",
    f"(Tensor tensor, int[]? listed, Tensor? splits, str? name, {_PLACE}) -> (Tensor, Tensor)",
    _alltoall_run,
    _alltoall_run_fake,
)
_alltoall_operator = _taking_operator(
    "alltoall",
    "(Tensor[] tensors, Tensor ticket, Tensor received, str? name, int process_set) -> Tensor[]",
    _alltoall_backward,
)


def alltoall(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet | None
) -> tuple[Tensor, Tensor]:
    """Runs alltoall in a compiled function; always returns the pair."""
    both = (None, splits) if splits is None or isinstance(splits, Tensor) else (splits, None)
    place = _place_of(process_set)
    ticket, received = _alltoall_run_operator(tensor.detach(), *both, name, *place)
    return _alltoall_operator([tensor], ticket, received, name, place[0])[0], received


# Reducescatter


def _reducescatter(tensors: list[Tensor], grouped: bool, name: str | None, *how: Any) -> list[Tensor]:
    reduction = _reduction(*how[:-2])
    if grouped:
        results: list[Tensor] = collectives.grouped_reducescatter(tensors, name, reduction, SYNC).wait()
        return results
    return [collectives.reducescatter(tensors[0], name, reduction, SYNC).wait()]


def _reducescatter_fake(tensors: list[Tensor], *arguments: Any) -> list[Tensor]:
    members, index = arguments[-2:]
    return _with_rows(tensors, [(tensor.shape[0] + members - 1 - index) // members for tensor in tensors])


def _reducescatter_backward(ctx: Any, grads: list[Tensor]) -> Any:
    return _gradients(ctx, _reducescatter_gradient(grads, ctx.rows, *ctx.arguments[:-2]))


def _gradient_of_reducescatter(
    grads: list[Tensor], rows: list[int], grouped: bool, name: str | None, *how: Any
) -> list[Tensor]:
    if grouped:
        return list(autograd.gradient_of_grouped_reducescatter(grads, name, _reduction(*how)))
    return [autograd.gradient_of_reducescatter(grads[0], name, _reduction(*how))]


_reducescatter_gradient = _operator(
    "reducescatter_gradient",
    f"(Tensor[] grads, SymInt[] rows, bool grouped, {_HOW}) -> Tensor[]",
    _gradient_of_reducescatter,
    lambda grads, rows, *_: _with_rows(grads, rows),
)
_reducescatter_operator = _operator(
    "reducescatter",
    f"(Tensor[] tensors, bool grouped, {_HOW}, int members, int index) -> Tensor[]",
    _reducescatter,
    _reducescatter_fake,
    _reducescatter_backward,
)


def reducescatter(tensors: Sequence[Tensor], grouped: bool, name: str | None, how: Reduction) -> list[Tensor]:
    """Runs reducescatter and grouped_reducescatter in a compiled function."""
    _, members, index = _place_of(how[-1])
    results: list[Tensor] = _reducescatter_operator(list(tensors), grouped, name, *_flat(how), members, index)
    return results


# Barrier


_barrier_operator = _operator(
    "barrier", "(int process_set) -> ()", lambda number: collectives.barrier(_set_of(number)), lambda number: None
)


def barrier(process_set: ProcessSet | None) -> None:
    """Runs barrier in a compiled function."""
    _barrier_operator(_number_of(process_set))


# A call that is wrong


def _refuse(label: str, name: str | None, why: str, number: int) -> None:
    collectives.refuse(label, name, InvalidRequestError(why), _set_of(number))


_refuse_operator = _operator(
    "refuse", "(str label, str? name, str why, int process_set) -> ()", _refuse, lambda *_: None
)


def refuse(label: str, name: str | None, why: str, process_set: ProcessSet | None) -> None:
    """Raises ValueError in a compiled function, and tells the peers."""
    _refuse_operator(label, name, why, _number_of(process_set))
