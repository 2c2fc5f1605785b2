# SPDX-License-Identifier: Apache-2.0
"""The operations for MXNet (steps 1 and 3 of a gradient's way).

allreduce, broadcast and reducescatter, their grouped forms and those in place return at once: MXNet's engine runs them
when their arrays are computed, in parallel with everything that does not need them, and reading a result waits
for it. Errors of the ranks' meeting are raised by that read (errors.py). allgather and alltoall wait, because an array
of MXNet must know its shape. Nothing here is recorded by autograd.

`priority`: among operations that are ready, MXNet starts those with the higher number first. What the operations mean
stands in core/collectives.py.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mxnet as mx

from horovod.core import context as contexts
from horovod.core import joining, native, process_sets
from horovod.core.collectives import Reduction, resolved
from horovod.core.context import LOCAL_ERRORS, Context
from horovod.core.exceptions import InvalidRequestError
from horovod.core.native import (
    ALLREDUCE,
    BROADCAST,
    REDUCESCATTER,
    SYNC,
    Adasum,
    Average,
    BitAnd,
    BitOr,
    BitXor,
    Max,
    Min,
    Product,
    Sum,
)
from horovod.core.operations import Operation
from horovod.core.process_sets import ProcessSet, checked_root, global_process_set, number_of
from horovod.core.requests import (
    MAX_ENTRIES,
    check_adasum_ranks,
    check_name,
    check_reduction,
    check_tensors,
    request_of,
    wire_name,
)
from horovod.core.tensors import of_each
from horovod.mxnet.errors import MXNetError, raising_mxnets
from horovod.mxnet.shim import push
from horovod.mxnet.tensors import check, collectives, dtype_of, empty, is_on_host

__all__ = [
    "Adasum",
    "Average",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reducescatter",
    "remove_process_set",
]

# The names of calls without one come again after that many, as new names cost the native core memory and time. So many
# of these calls may be in flight at once; the next one waits for the first.
MAX_UNNAMED = 256


class _Names:
    """The names of one generation's operations, and the order in which operations of one name run."""

    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[ProcessSet, Iterator[int]] = weakref.WeakKeyDictionary()
        self._orders: OrderedDict[tuple[int, str, str], Any] = OrderedDict()

    def unnamed(self, process_set: Any) -> str:
        """The next name of a call without one: MXNet may run calls in another order than a script makes them."""
        # Not by the set's number, which another set may get once this one is removed.
        of = process_set if isinstance(process_set, ProcessSet) else global_process_set
        return f"noname.{next(self._counts.setdefault(of, itertools.count())) % MAX_UNNAMED}"

    def count_anew(self) -> None:
        """All ranks are at the same place of their scripts."""
        self._counts.clear()

    def order(self, process_set: int, label: str, name: str) -> Any:
        """An array that all operations of that name write: so they run one by one, as the script calls them."""
        key = (process_set, label, name)
        array = self._orders.pop(key, None)
        self._orders[key] = mx.nd.empty((1,)) if array is None else array
        if len(self._orders) > MAX_ENTRIES:
            self._orders.popitem(last=False)
        return self._orders[key]


_names: weakref.WeakKeyDictionary[Context, _Names] = weakref.WeakKeyDictionary()


def _names_of(context: Context) -> _Names:
    return _names.setdefault(context, _Names())


# Operations that are pushed to MXNet's engine.


def reduce(
    kind: int,
    label: str,
    tensors: Any,
    name: str | None,
    priority: int,
    how: Reduction,
    in_place: bool,
    step: int | None = None,
) -> list[Any]:
    """Pushes a reduction of several arrays, done or failed as a whole; returns the results. `step`: as of push."""
    if isinstance(tensors, (list, tuple)) and not tensors:
        return []

    def fixed(dtypes: Sequence[int]) -> dict[str, Any]:
        op, prescale, postscale, number = resolved(how)
        check_reduction(kind, op, dtypes)
        if op == Adasum:
            check_adasum_ranks(contexts.current().place(number)[0])
        return {"op": int(op), "prescale": prescale, "postscale": postscale}

    return _pushed(kind, label, tensors, name, priority, how[-1], fixed, in_place, step)


def _copy(tensor: Any, root_rank: Any, name: str | None, priority: int, process_set: ProcessSet, in_place: bool) -> Any:
    def fixed(_: Sequence[int]) -> dict[str, Any]:
        return {"root_rank": checked_root(contexts.current(), root_rank, number_of(process_set))}

    return _pushed(BROADCAST, "broadcast", [tensor], name, priority, process_set, fixed, in_place)[0]


def _pushed(
    kind: int,
    label: str,
    tensors: Any,
    name: str | None,
    priority: int,
    process_set: ProcessSet | None,
    fixed: Callable[[Sequence[int]], dict[str, Any]],
    in_place: bool,
    step: int | None = None,
) -> list[Any]:
    """`fixed`: from the arrays' dtypes, what request_of needs for this kind of operation."""
    context = contexts.current()
    names = _names_of(context)
    name = names.unnamed(process_set) if name is None else name
    try:
        check_name(name)
        if in_place and step is None:  # what a step reduces are gradients
            _check_not_recorded()
        _check_group(tensors)
        metas = tuple((dtype_of(tensor), tuple(tensor.shape)) for tensor in tensors)
        check_tensors(kind, label, metas)
        number = number_of(process_set)
        options = fixed([dtype for dtype, _ in metas])
        request = request_of(kind, wire_name(label, name), metas, process_set=number, **options)
        order = names.order(number, label, name)
    except LOCAL_ERRORS as error:
        collectives.refuse(label, name, error, process_set)
    hosts = [tensor if is_on_host(tensor) else tensor.as_in_context(mx.cpu()) for tensor in tensors]
    kinds = [type(tensor) for tensor in tensors]
    outputs = (
        hosts if in_place else [_output(context, kind, number, *which) for which in zip(kinds, metas, strict=True)]
    )
    push(label, request, hosts, outputs, [order], int(priority), step)
    if not in_place:
        return [output.as_in_context(tensor.context) for output, tensor in zip(outputs, tensors, strict=True)]
    for host, tensor in zip(hosts, tensors, strict=True):
        if host is not tensor:
            host.copyto(tensor)
    return list(tensors)


def _output(context: Context, kind: int, number: int, array: type, meta: tuple[int, tuple[int, ...]]) -> Any:
    dtype, shape = meta
    if kind == REDUCESCATTER:
        members, member = context.place(number)
        shape = (int(native.library().hvd_rows_of_member(shape[0], members, member)), *shape[1:])
    return empty(array, shape, dtype)


def _check_group(tensors: Any) -> None:
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(f"a grouped operation takes a list of tensors, got {type(tensors).__name__}")
    of_each(check, tensors)


def _check_not_recorded() -> None:
    """MXNet would go on with the gradient of what the array held before."""
    if mx.autograd.is_recording():
        raise InvalidRequestError(
            "it changes an array in place, which autograd does not record: gradients would be wrong\n"
            "hint: call it outside of autograd.record(), or in autograd.pause() if the loss does not depend on it"
        )


# Operations that block.


def _waited(label: str, name: str | None, process_set: ProcessSet, start: Callable[[str], Operation]) -> Any:
    """The result of an operation that the core runs, on this thread."""
    name = _names_of(contexts.current()).unnamed(process_set) if name is None else name
    with raising_mxnets():
        try:
            operation = start(name)
        except MXNetError as error:
            # The computation of its array has failed, which only reading it tells.
            collectives.tell(label, name, error, process_set)
            raise
        return operation.wait()


# The operations.


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduces `tensor` over all ranks into a new array.

    The result is postscale * reduce(prescale * x), divided by the size for Average, which is the default. Raises
    ValueError for an error of this rank's call; reading the result raises an MXNetError, which is a
    HorovodInternalError as well, if the ranks disagree or one is lost.
    """
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return reduce(ALLREDUCE, "allreduce", [tensor], name, priority, how, False)[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Does allreduce into `tensor` itself, which is returned. Raises ValueError inside of autograd.record()."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return reduce(ALLREDUCE, "allreduce", [tensor], name, priority, how, True)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Does allreduce of several arrays as a whole: all of them or none. An empty list gives an empty list."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return reduce(ALLREDUCE, "grouped_allreduce", tensors, name, priority, how, False)


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Does grouped_allreduce into the arrays themselves, which are returned. Raises ValueError as allreduce_ does."""
    how = (op, average, prescale_factor, postscale_factor, process_set)
    return reduce(ALLREDUCE, "grouped_allreduce", tensors, name, priority, how, True)


def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Joins all ranks' arrays along dimension 0 in rank order; that dimension may differ by rank. Blocks."""
    return _waited(
        "allgather", name, process_set, lambda known: collectives.allgather(tensor, known, process_set, SYNC)
    )


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Does allgather of several arrays as a whole: all of them or none. Blocks. An empty list gives an empty list."""
    if isinstance(tensors, (list, tuple)) and not tensors:
        return []

    def start(known: str) -> Operation:
        return collectives.grouped_allgather(tensors, known, process_set, SYNC)

    return list(_waited("grouped_allgather", name, process_set, start))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends splits[r] rows of `tensor` to each rank r, the first rows to the first rank. Blocks.

    Rows beyond their sum go to no rank. `splits` is a list of ints or an array of int32 or int64. Returns the rows that
    came, in rank order, and as an int32 array how many came from each rank; without `splits` every rank gets equally
    many, and the rows alone are returned.
    """

    def start(known: str) -> Operation:
        return collectives.alltoall(tensor, splits, known, process_set, SYNC, splits is not None)

    return _waited("alltoall", name, process_set, start)


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Gives this rank its rows of the allreduce of `tensor`.

    They are dealt in rank order, one more to the first ranks if they do not come out even.
    """
    how = (op, None, prescale_factor, postscale_factor, process_set)
    return reduce(REDUCESCATTER, "reducescatter", [tensor], name, priority, how, False)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Does reducescatter of several arrays as a whole: all of them or none. An empty list gives an empty list."""
    how = (op, None, prescale_factor, postscale_factor, process_set)
    return reduce(REDUCESCATTER, "grouped_reducescatter", tensors, name, priority, how, False)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Copies the array of world rank `root_rank` into a new one."""
    return _copy(tensor, root_rank, name, priority, process_set, False)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrites `tensor` with the root's and returns it. Raises ValueError inside of autograd.record()."""
    return _copy(tensor, root_rank, name, priority, process_set, True)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the set has called it. Operations that were started before may still run."""
    with raising_mxnets():
        collectives.barrier(process_set)


def join() -> int:
    """This rank has no more data: it waits for what it has started, and then gives zeros to the others' allreduces.

    Blocks until all ranks have called it; returns the rank that joined last.
    """
    mx.nd.waitall()
    with raising_mxnets():
        last = joining.join()
    _names_of(contexts.current()).count_anew()  # the others have made more calls without names
    return last


def remove_process_set(process_set: ProcessSet) -> bool:
    """As the core's, once what this rank has started is done."""
    mx.nd.waitall()
    return process_sets.remove_process_set(process_set)
